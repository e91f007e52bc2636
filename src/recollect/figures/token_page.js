// The page of a run that sees images: each image, the words that are read in its place, and what they are attended to for.

const PACE = 160;
const AROUND = 6; // images before and after the one that is shown
const COLUMNS = {
  image: Int32Array, action: Int16Array, reward: Float32Array, value: Float32Array,
  outputs: { log: Float32Array },
  tokens: { word: Int32Array, score: Float32Array, entropy: Float32Array },
  attention: { row: Int32Array, top: Float32Array, weight: Uint8Array },
};
at.layer = -1;

const firstEpisode = () => 1;
const source = (task, image) => `data:image/png;base64,${task.images[image]}`;
const actionName = (task, row) => (task.action === null ? "" : DATA.actions[task.action[row]] ?? `action ${task.action[row]}`);

/** The words that are named of a step, best first. */
function wordsOf(task, row) {
  const { count, word, score, words } = task.tokens;
  return Array.from({ length: count }, (_, k) => ({ word: words[word[row * count + k]], score: score[row * count + k] }));
}

/** The words that are read at a step: of a mixture the heaviest in its place. */
const readAt = (task, row) => (task.tokens ? wordsOf(task, row).slice(0, task.tokens.mixture ? 1 : undefined).map((found) => found.word).join(" ") : "");

/** What a layer looks back at, as last computed at or before a row: weights of steps of the episode, and of what is before it. */
function attentionOf(task, row) {
  const attention = task.attention, start = task.start[at.episode];
  if (!attention) return null;
  const place = mapAt(task, row);
  if (place < 0) return null;
  const layers = attention.layers.length, layer = at.layer < 0 ? layers - 1 : at.layer, of = place * layers + layer;
  const now = attention.row[place] - start, weights = new Map();
  let before = 0;
  for (let i = 0; i < attention.steps; i++) {
    const weight = (attention.weight[of * attention.steps + i] / 255) * attention.top[of], step = now - attention.steps + 1 + i;
    if (step < 0) before += weight;
    else weights.set(step, weight);
  }
  return { weights, before, step: now };
}

const small = (x) => (x >= 0.01 || x <= 0 ? x.toFixed(2) : x.toExponential(1));
const bar = (name, said, share, chosen) => `<div class="${chosen ? "chosen" : ""}"><i style="width:${(100 * Math.max(0, Math.min(1, share))).toFixed(1)}%"></i><b>${escaped(name)}</b><span>${escaped(said)}</span></div>`;

function drawStrip(task, row) {
  const start = task.start[at.episode], count = length(task, at.episode), around = globalThis.innerWidth < 600 ? 2 : AROUND;
  const shown = Math.min(count, 2 * around + 1), first = Math.max(0, Math.min(at.step - around, count - shown));
  $("strip").innerHTML = Array.from({ length: shown }, (_, i) => {
    const step = first + i, said = readAt(task, start + step);
    return `<figure data-step="${step}" class="${start + step === row ? "now" : ""}"><img src="${source(task, task.image[start + step])}" alt=""><figcaption title="${escaped(said)}">${step + 1}${said ? `<br>${escaped(said)}` : ""}<br>${escaped(actionName(task, start + step))}</figcaption></figure>`;
  }).join("");
}

function drawSeen(task, row) {
  $("image").src = source(task, task.image[row]);
  const rows = [];
  if (task.action) rows.push(["does", actionName(task, row)]);
  rows.push(...gains(task, row));
  if (task.value) rows.push(["value", task.value[row].toFixed(3)]);
  $("said").innerHTML = facts(rows);
  $("actions").innerHTML = "";
  if (!task.outputs) return;
  const log = Array.from(task.outputs.log.subarray(row * task.outputs.count, (row + 1) * task.outputs.count)), most = Math.max(...log);
  const total = log.reduce((sum, value) => sum + Math.exp(value - most), 0);
  $("actions").innerHTML = log.map((value, i) => {
    const share = Math.exp(value - most) / total;
    return bar(DATA.actions[i] ?? `action ${i}`, percent(share), share, i === task.action[row]);
  }).join("");
}

function drawWords(task, row) {
  if (!task.tokens) {
    $("words").innerHTML = "";
    $("words-said").textContent = "";
    $("words-note").textContent = "No words: this method gives it vectors of image features, or has no language model.";
    return;
  }
  const { count, mixture, entropy, score } = task.tokens;
  task.tokens.top ??= mixture ? Math.max(...score.filter((_, i) => i % count === 0)) : 1; // where a bar ends: a cosine's at 1
  const top = task.tokens.top, found = wordsOf(task, row);
  $("words-said").textContent = mixture ? "a mixture of all words; the heaviest and their weights" : "the words most like the image, best first; cosine";
  $("words").innerHTML = found.map(({ word, score }) => bar(word, small(score), score / Math.max(top, 1e-9), false)).join("");
  $("words-note").textContent = mixture ? `entropy ${entropy[row].toFixed(2)} nats, as of ${short(Math.round(Math.exp(entropy[row])))} words of equal weight` : "";
}

function drawText(task, row) {
  $("text-card").hidden = !task.tokens;
  if (!task.tokens) return;
  const start = task.start[at.episode], first = Math.max(0, at.step + 1 - (task.attention ? task.attention.steps : Infinity)), attention = attentionOf(task, row);
  const runs = [];
  for (let step = first; step <= at.step; step++) {
    const said = readAt(task, start + step), last = runs[runs.length - 1], weight = (attention && attention.weights.get(step)) || 0;
    if (last && last.said === said) { last.end = step; last.weight += weight; } else runs.push({ said, first: step, end: step, weight });
  }
  const most = Math.max(1e-9, ...runs.map((run) => run.weight));
  $("text").innerHTML = runs.map((run, i) => {
    const many = run.end > run.first ? ` <small>×${run.end - run.first + 1}</small>` : "", steps = run.end > run.first ? `steps ${run.first + 1} to ${run.end + 1}` : `step ${run.first + 1}`;
    const ink = attention ? ` style="background:color-mix(in srgb, var(--attend) ${((70 * run.weight) / most).toFixed(0)}%, transparent)"` : "";
    return `<span data-step="${run.first}" class="${i === runs.length - 1 ? "now" : ""}"${ink} title="${steps}${attention ? `: ${percent(run.weight)} of the attention` : ""}">${escaped(run.said)}${many}</span>`;
  }).join(" ");
  $("text").scrollTop = 1e9;
  $("text-said").textContent = attention ? "shaded: attention of this step" : first > 0 ? `the last ${at.step - first + 1} steps` : "since the episode began";
}

function drawSteps(task) {
  const start = task.start[at.episode], count = length(task, at.episode), x = placeOf(count), tokens = task.tokens;
  const drawn = (values, top, bottom, name, look) => {
    const low = Math.min(...values), high = Math.max(...values), y = scale(low, high, top, bottom);
    return curve(values.map((v, s) => [x(s), y(v)]), look) + side(small(low), bottom + 3) + side(small(high), top + 4) + atRight(name, top - 6);
  };
  const sums = [returnsSoFar(task, at.episode), "return so far"], rows = Array.from({ length: count }, (_, s) => start + s);
  const shown = task.value ? [[rows.map((row) => task.value[row]), "value"]] : [sums];
  if (tokens?.mixture) shown.push([rows.map((row) => tokens.entropy[row]), "entropy of the mixture, nats"]);
  else if (tokens) shown.push([rows.map((row) => tokens.score[row * tokens.count]), "similarity of the best word"]);
  else if (task.value) shown.push(sums);
  $("steps").innerHTML = shown.map(([values, name], i) => i ? drawn(values, 92, 147, name, "read") : drawn(values, 14, 70, name, "")).join("") + stepAxis(task);
}

function drawAttention(task, row) {
  $("attention-card").hidden = !task.attention;
  if (!task.attention) return;
  const layers = task.attention.layers, layer = at.layer < 0 ? layers.length - 1 : at.layer;
  $("layers").innerHTML = layers.length < 2 ? "" : `layer ${buttons("layer", layers, layer)}`;
  const found = attentionOf(task, row), count = length(task, at.episode);
  $("attention").innerHTML = $("attention-said").textContent = "";
  if (!found) return;
  // What it remembers, however long the episode is.
  const first = Math.max(0, found.step + 1 - task.attention.steps), shown = Math.min(count - first, task.attention.steps);
  const top = Math.max(1e-9, ...found.weights.values()), parts = [attentionBars([...found.weights], first, shown, top, 70, 62)];
  const every = spacing(shown), x = placeOf(shown);
  for (let s = Math.ceil((first + 1) / every) * every; s <= first + shown; s += every)
    parts.push(`<text x="${x(s - first - 1)}" y="83" text-anchor="middle">${s}</text>`);
  $("attention").innerHTML = parts.join("");
  const late = found.step === at.step ? "" : `; computed at step ${found.step + 1}`;
  $("attention-said").textContent = `mean over heads${found.before > 0.0005 ? `; ${percent(found.before)} before the episode` : ""}${late}`;
}

/** Of the whole task; drawn when the task changes. */
function drawStatistics(task) {
  $("statistics-card").hidden = !task.tokens;
  if (!task.tokens) return;
  const { statistics, words, mixture } = task.tokens, most = Math.max(1, ...statistics.histogram.map((entry) => entry.steps));
  $("statistics-said").textContent = `${statistics.words} different words${mixture ? " (the heaviest of each mixture)" : ""} for ${statistics.images} different images in ${statistics.steps} steps of ${episodes(task)} episodes: ${statistics.per_image.toFixed(2)} words per image`;
  $("histogram").innerHTML = statistics.histogram.map((entry) =>
    `<tr data-row="${task.image.indexOf(entry.image)}"><td>${escaped(words[entry.word])}</td><td style="width:40%"><span class="meter" style="width:${((100 * entry.steps) / most).toFixed(1)}%"></span></td><td class="number">${entry.steps}</td><td class="number">${entry.images}</td><td><img src="${source(task, entry.image)}" alt=""></td></tr>`).join("");
  $("frequent").innerHTML = statistics.frequent.map((entry) => {
    const said = wordsOf(task, entry.row).map(({ word, score }) => `${escaped(word)} <small>${small(score)}</small>`).join("<br>");
    return `<figure data-row="${entry.row}"><img src="${source(task, entry.image)}" alt=""><figcaption>${said}<br><small>${entry.steps} steps</small></figcaption></figure>`;
  }).join("");
}

function drawPage(task, row, isAnotherTask) {
  for (const part of [drawStrip, drawSeen, drawWords, drawText, drawSteps, drawAttention]) part(task, row);
  if (isAnotherTask) drawStatistics(task);
}

/** To a row of the task. */
function goRow(row) {
  const { start } = taskOf(at.task), episode = start.findLastIndex((first) => first <= row);
  go({ episode, step: row - start[episode] });
}

for (const id of ["strip", "text", "attention"]) onClick(id, "step", (step) => go({ step }));
for (const id of ["histogram", "frequent"]) onClick(id, "row", goRow);
onClick("layers", "layer", (layer) => { at.layer = layer; draw(); });
