// What the inspection pages share: their data, the sliders, and moving through tasks, episodes and steps. The script of
// a page follows. It gives `PACE` (the milliseconds that a played step takes), `COLUMNS` (the arrays of a task),
// `firstEpisode(task)` (shown where the address names none) and `drawPage(task, row, isAnotherTask)`.

const DATA = JSON.parse(document.getElementById("data").textContent);
const at = { task: 0, episode: 0, step: 0, timer: null };
const $ = (id) => document.getElementById(id);
const LEFT = 34, RIGHT = 514; // ends of the horizontal axis of a chart

/** Turn texts into arrays in place: `columns` has the type of each, or those of an inner object. */
function unpack(object, columns) {
  for (const [name, type] of Object.entries(columns)) {
    if (!object[name]) continue; // a trace without this column
    if (typeof type !== "function") unpack(object[name], type);
    else object[name] = new type(Uint8Array.from(atob(object[name]), (byte) => byte.charCodeAt(0)).buffer);
  }
}

/** A task with its columns as arrays; each is unpacked once, when it is first looked at. */
function taskOf(number) {
  const task = DATA.tasks[number];
  if (task.returns) return task;
  unpack(task, COLUMNS);
  task.returns = Array.from({ length: episodes(task) }, (_, e) => returnsSoFar(task, e).at(-1) ?? 0);
  return task;
}

const episodes = (task) => task.start.length - 1;
const length = (task, episode) => task.start[episode + 1] - task.start[episode];

/** The return up to each step of an episode. */
function returnsSoFar(task, episode) {
  let total = 0;
  return Array.from(task.reward.subarray(task.start[episode], task.start[episode + 1]), (reward) => (total += reward));
}

/** The last map of attention at or before a row, as its place among the maps; -1: there is none in this episode. */
function mapAt(task, row) {
  const place = task.attention.row.findLastIndex((mapped) => mapped <= row);
  return task.attention.row[place] < task.start[at.episode] ? -1 : place;
}

const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const short = (x) => (Number.isInteger(x) ? String(x) : x.toFixed(Math.abs(x) < 10 ? 2 : 1));
const percent = (v) => `${(100 * v).toFixed(v < 0.095 ? 1 : 0)} %`;
const facts = (rows) => rows.map(([name, value]) => `<dt>${escaped(name)}</dt><dd>${escaped(value)}</dd>`).join("");

/** What the agent gets at a step, and its return until then. */
const gains = (task, row) => [
  ["gets", short(task.reward[row])],
  ["return", `${short(returnsSoFar(task, at.episode)[at.step])} so far, ${short(task.returns[at.episode])} at the end`],
];

/** Buttons that choose one of several things; none where there is one. */
const buttons = (name, said, chosen) =>
  said.length < 2 ? "" : said.map((text, i) => `<button data-${name}="${i}" aria-pressed="${i === chosen}">${escaped(text)}</button>`).join(" ");

/** At the left of a chart, at its right, and a line below it. */
const side = (said, y, x = LEFT - 5) => `<text x="${x}" y="${y}" text-anchor="end">${said}</text>`;
const atRight = (said, y) => `<text x="${RIGHT}" y="${y}" text-anchor="end">${said}</text>`;
const axis = (y, look = "axis") => `<line class="${look}" x1="${LEFT}" x2="${RIGHT}" y1="${y}" y2="${y}"/>`;

/** How high values from `low` to `high` stand between `bottom` and `top`. */
const scale = (low, high, top, bottom) => (value) => bottom - ((value - low) / Math.max(high - low, 1e-9)) * (bottom - top);
const curve = (points, look) => `<polyline class="curve ${look}" points="${points.map((place) => place.map((v) => v.toFixed(1))).join(" ")}"/>`;

/** Bars of attention, [step, weight] each, as many as are `shown` from a step on; `high`: of one with the weight `top`. */
function attentionBars(weights, first, shown, top, bottom, high, words = percent) {
  const wide = (RIGHT - LEFT) / shown;
  return weights.map(([step, weight]) => {
    const x = LEFT + (step - first) * wide, tall = (weight / top) * high;
    const seen = `<rect class="attend" x="${x + 0.08 * wide}" y="${bottom - tall}" width="${0.84 * wide}" height="${tall}"/>`;
    return `${seen}<rect class="hit" data-step="${step}" x="${x}" y="0" width="${wide}" height="${bottom}"><title>step ${step + 1}: ${words(weight)}</title></rect>`;
  }).join("") + axis(bottom) + side(percent(top), 14, LEFT - 4);
}

/** Which steps have a number below a chart that shows so many. */
const spacing = (shown) => [1, 2, 5, 10, 20, 50, 100, 200, 500].find((size) => shown / size <= 10) || 1000;

/** Where a step of the episode stands in a chart of all of them. */
const placeOf = (count) => (step) => LEFT + ((step + 0.5) / count) * (RIGHT - LEFT);

/** Below the curves of an episode: its rewards, the axis with its numbers, the step that is shown, and what is clicked. */
function stepAxis(task) {
  const start = task.start[at.episode], count = length(task, at.episode), x = placeOf(count), parts = [];
  for (let s = 0; s < count; s++)
    if (task.reward[start + s] !== 0) parts.push(`<line class="reward" x1="${x(s)}" x2="${x(s)}" y1="160" y2="168" stroke-width="${Math.max(1, Math.min(3, 300 / count))}"/>`);
  parts.push(side("reward", 167), axis(171));
  for (let s = spacing(count); s <= count; s += spacing(count)) parts.push(`<text x="${x(s - 1)}" y="184" text-anchor="middle">${s}</text>`);
  parts.push(`<line class="cursor" x1="${x(at.step)}" x2="${x(at.step)}" y1="2" y2="171"/>`);
  parts.push(`<rect class="hit" data-steps="${count}" x="${LEFT}" y="0" width="${RIGHT - LEFT}" height="188"/>`);
  return parts.join("");
}

function draw(isAnotherTask) {
  const task = taskOf(at.task), row = task.start[at.episode] + at.step;
  $("task").value = String(at.task);
  for (const [name, value, count] of [["episode", at.episode, episodes(task)], ["step", at.step, length(task, at.episode)]]) {
    $(name).max = String(count - 1);
    $(name).value = String(value);
    $(name + "-said").textContent = `${value + 1} of ${count}`;
  }
  drawPage(task, row, isAnotherTask);
  const place = `#task=${task.index}&episode=${at.episode + 1}&step=${at.step + 1}`;
  try { history.replaceState(null, "", place); } catch (error) { /* some browsers forbid it for files; nothing depends on it */ }
}

const within = (value, count) => Math.max(0, Math.min(count - 1, value));

function go(to, first) {
  const before = at.task;
  at.task = within(to.task ?? at.task, DATA.tasks.length);
  const task = taskOf(at.task);
  at.episode = within(to.episode ?? at.episode, episodes(task));
  at.step = within(to.step ?? at.step, length(task, at.episode));
  draw(first || at.task !== before);
}

/** Steps forth or back, over the ends of episodes; false at the end of the last. */
function move(steps) {
  const task = taskOf(at.task), last = length(task, at.episode) - 1;
  if (steps > 0 && at.step === last) {
    if (at.episode === episodes(task) - 1) return false;
    go({ episode: at.episode + 1, step: 0 });
  } else if (steps < 0 && at.step === 0) {
    if (at.episode > 0) go({ episode: at.episode - 1, step: Infinity });
  } else go({ step: at.step + steps });
  return true;
}

function play() {
  if (at.timer === null) at.timer = setInterval(() => move(1) || play(), PACE);
  else { clearInterval(at.timer); at.timer = null; }
  $("play").textContent = at.timer === null ? "▶" : "❚❚";
}

const KEYS = {
  ArrowRight: (event) => move(event.shiftKey ? 10 : 1),
  ArrowLeft: (event) => move(event.shiftKey ? -10 : -1),
  ArrowUp: () => go({ episode: at.episode + 1 }),
  ArrowDown: () => go({ episode: at.episode - 1 }),
  PageUp: () => go({ task: at.task - 1 }),
  PageDown: () => go({ task: at.task + 1 }),
  Home: () => go({ step: 0 }),
  End: () => go({ step: Infinity }),
  " ": () => play(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key] || event.target.tagName === "SELECT") return;
  event.preventDefault();
  KEYS[event.key](event);
});
$("task").addEventListener("change", () => go({ task: Number($("task").value) }));
$("episode").addEventListener("input", () => go({ episode: Number($("episode").value) }));
$("step").addEventListener("input", () => go({ step: Number($("step").value) }));
$("play").addEventListener("click", play);

/** What a click does on the things in an element that carry a number, such as `data-step`. */
function onClick(id, name, then) {
  $(id).addEventListener("click", ({ target, clientX }) => {
    const found = target.closest?.(`[data-${name}]`) ?? target;
    if (found.dataset[name] !== undefined) then(Number(found.dataset[name]), found, clientX);
  });
}

onClick("steps", "steps", (count, chart, clientX) => {
  const box = chart.getBoundingClientRect();
  go({ step: Math.floor(((clientX - box.left) / box.width) * count) });
});

/** The task with the highest return of all its episodes, the first of several: shown where the address names none. */
function bestTask() {
  const totals = DATA.tasks.map((_, i) => taskOf(i).returns.reduce((sum, value) => sum + value, 0));
  return totals.indexOf(Math.max(...totals));
}

/** Show the place that the address names. */
function open() {
  const more = DATA.tasks.some((task) => task.traced > episodes(task));
  $("title").textContent = DATA.title;
  $("facts").textContent = [...DATA.facts, ...(DATA.tasks.length > 1 ? ["the best task first"] : []), ...(more ? ["the first of the traced episodes"] : [])].join(" · ");
  $("warning").textContent = DATA.warning;
  $("task").innerHTML = DATA.tasks.map((task, i) => {
    const marks = (task.marks || []).map(([name, row, column]) => `${name} (${column}, ${row})`).join(", ");
    return `<option value="${i}">task ${task.index}: ${escaped(marks || task.name)}</option>`;
  }).join("");
  const asked = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const number = (name, other) => (asked[name] === undefined || isNaN(asked[name]) ? other : Number(asked[name]));
  const named = DATA.tasks.findIndex((item) => item.index === number("task", NaN)), task = named < 0 ? bestTask() : named;
  go({ task, episode: number("episode", firstEpisode(taskOf(task))) - 1, step: number("step", 1) - 1 }, true);
}
