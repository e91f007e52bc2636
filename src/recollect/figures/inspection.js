// The page of a world that is drawn from above: where the agent walks, and what it reads: windows of its past, or steps of its
// episode.

const PACE = 110;
const UNIT = 20; // of a cell in a drawing
const MOVES = { north: [0, -1], east: [1, 0], south: [0, 1], west: [-1, 0] };
const COLUMNS = {
  cell: Int32Array, action: Int16Array, reward: Float32Array, aim: Float32Array,
  read: {
    episode: Int16Array, first: Int16Array, end: Int16Array,
    similarity: Float32Array, score: Float32Array, total_return: Float32Array,
  },
  attention: { row: Int32Array, top: Float32Array, weight: Uint8Array },
};
Object.assign(at, { entry: -1, visits: false });

const firstEpisode = (task) => Math.ceil(episodes(task) / 2);
const xy = (task, cell) => [cell % task.width, Math.floor(cell / task.width)];

/** Which of the windows that are read is looked at: the last, with the highest return, until another is chosen. */
const entryOf = (task) => (at.entry < 0 || at.entry >= task.read.count ? task.read.count - 1 : at.entry);

/** The retrieved window of one entry (0 is the lowest return) that is read at a row of the task; null: none. */
function windowOf({ read }, row, entry) {
  const i = row * read.count + entry;
  if (read.episode[i] < 0) return null;
  return Object.fromEntries(Object.keys(COLUMNS.read).map((name) => [name, read[name][i]]));
}

/** The weights on the steps of each entry's window, as last computed at or before a row; null: none in this episode. */
function attentionOf(task, row, entry) {
  const place = task.attention ? mapAt(task, row) : -1;
  if (place < 0) return null;
  const { width, weight, row: rows, top } = task.attention, each = width / task.read.count, first = place * width + entry * each;
  const weights = Array.from(weight.subarray(first, first + each), (level) => (level / 255) * top[place]);
  return { weights, uniform: 1 / width, row: rows[place], top: top[place] };
}

/** The weights on the steps of this episode, [step, weight] each, as last computed at or before a row; null: none. */
function backOf(task, row) {
  const place = task.attention && !task.read ? mapAt(task, row) : -1;
  if (place < 0) return null;
  const { width, weight, row: rows, top } = task.attention, now = rows[place] - task.start[at.episode], first = Math.max(0, now + 1 - width);
  const of = (step) => (weight[(place + 1) * width - 1 - (now - step)] / 255) * top[place];
  const weights = Array.from({ length: now + 1 - first }, (_, i) => [first + i, of(first + i)]);
  return { weights, first, row: rows[place], top: Math.max(1e-9, ...weights.map(([, value]) => value)) };
}

const middle = (task, cell) => xy(task, cell).map((v) => (v + 0.5) * UNIT);

const plus = (a, b, times = 1) => [a[0] + times * b[0], a[1] + times * b[1]];
const same = (a, b, times = 1) => Math.hypot(...plus(a, b, -times)) < 1e-6;
const said = (point) => point.map((v) => v.toFixed(2)).join(" ");

/** Line pieces between the cells of a path, fainter the older. Each keeps to its right, so that ways back lie beside. */
function walk(task, cells, who) {
  const moves = [];
  for (let i = 1; i < cells.length; i++) {
    if (cells[i] === cells[i - 1]) continue;
    const from = middle(task, cells[i - 1]), to = middle(task, cells[i]), [dx, dy] = plus(to, from, -1);
    const shift = (0.11 * UNIT) / Math.hypot(dx, dy);
    moves.push({ from, to, aside: [-dy * shift, dx * shift] });
  }
  /** How far the corner between two pieces lies from the middle of the cell: both offsets at a turn, one straight on. */
  const corner = (one, other) => (same(one, other) || same(one, other, -1) ? one : plus(one, other));
  return moves.map(({ from, to, aside }, i) => {
    const before = moves[i - 1]?.aside ?? aside, after = moves[i + 1]?.aside ?? aside, turns = same(before, aside, -1);
    const first = plus(from, turns ? aside : corner(before, aside)), last = plus(to, corner(aside, after));
    const turn = turns ? `${said(plus(first, aside, -2))}L` : "";
    return `<path class="walk ${who}" d="M${turn}${said(first)}L${said(last)}" opacity="${(0.25 + (0.75 * (i + 1)) / moves.length).toFixed(2)}"/>`;
  }).join("");
}

const isGoal = ([name]) => name.startsWith("goal");
const CORNERS = { key: 3, sign: 4 }; // all else is a star

/** What stands in the room: as the episode begins where that is drawn anew for each, else what the task says. */
const standing = (task) => task.begins?.[at.episode] ?? { marks: task.marks, faint: [] };

/** What stands in a cell; `number` of goals that are several; `look` of what pays nothing. */
function mark([name, row, column], number, look = "") {
  const x = (column + 0.5) * UNIT, y = (row + 0.5) * UNIT, r = 0.42 * UNIT, corners = CORNERS[name] ?? 10;
  const points = Array.from({ length: corners }, (_, i) => {
    const radius = corners < 10 || i % 2 === 0 ? r : r * 0.45, angle = -Math.PI / 2 + (2 * Math.PI * i) / corners;
    return said([x + radius * Math.cos(angle), y + radius * Math.sin(angle)]);
  });
  const label = number ? `<text class="number" x="${x}" y="${y + 2}" text-anchor="middle" font-size="5.5">${number}</text>` : "";
  return `<polygon class="mark${look}" points="${points.join(" ")}"><title>${escaped(name)} (${column}, ${row})</title></polygon>${label}`;
}

/** The room: shade (cell -> 0..1), then what is drawn over the cells, then the marks. */
function room(svg, task, shade, kind, over) {
  const w = task.width * UNIT, h = task.height * UNIT, parts = [];
  svg.setAttribute("viewBox", `-1 -1 ${w + 2} ${h + 2}`);
  for (const [cell, ink] of shade) {
    const [x, y] = xy(task, cell);
    parts.push(`<rect class="${kind}" x="${x * UNIT}" y="${y * UNIT}" width="${UNIT}" height="${UNIT}" opacity="${ink.toFixed(3)}"/>`);
  }
  let lines = "";
  for (let x = 1; x < task.width; x++) lines += `M${x * UNIT} 0V${h}`;
  for (let y = 1; y < task.height; y++) lines += `M0 ${y * UNIT}H${w}`;
  parts.push(`<path class="cell" d="${lines}"/>`);
  for (const [row, column] of task.walls)
    parts.push(`<rect class="wall" x="${column * UNIT}" y="${row * UNIT}" width="${UNIT}" height="${UNIT}"/>`);
  parts.push(`<rect class="frame" width="${w}" height="${h}"/>`);
  const { marks, faint } = standing(task), goals = marks.filter(isGoal);
  parts.push(over[0], ...faint.map((one) => mark(one, 0, " faint")));
  parts.push(...marks.map((one) => mark(one, goals.length > 1 && goals.indexOf(one) + 1)), over[1]);
  svg.innerHTML = parts.join("");
}

const circle = (look, [x, y], r, width, inside = "") =>
  `<circle class="${look}" cx="${x}" cy="${y}" r="${r}" stroke-width="${width}">${inside}</circle>`;

/** How strongly each cell is shaded: the sums of `weightOf(i)` over the cells of a path, by the largest of them. */
function shadeOf(cells, weightOf, strongest, scaled = (sum) => sum) {
  const shade = new Map();
  cells.forEach((cell, i) => shade.set(cell, (shade.get(cell) || 0) + weightOf(i)));
  const most = scaled(Math.max(...shade.values()));
  for (const [cell, sum] of shade) shade.set(cell, most > 0 ? (strongest * scaled(sum)) / most : 0);
  return shade;
}

/** A path: its pieces, and a ring where it begins. */
const path = (task, cells, who) => walk(task, cells, who) + circle(`begin ${who}`, middle(task, cells[0]), 3.4, 1.6);

function drawAgent(task, row) {
  const start = task.start[at.episode], cells = Array.from(task.cell.subarray(start, row + 1));
  const back = backOf(task, row), read = back && cells.slice(back.first, back.first + back.weights.length);
  const lit = back ? shadeOf(read, (i) => back.weights[i][1], 0.8) : new Map();
  const shade = at.visits ? shadeOf(task.cell.subarray(0, start), () => 1, 0.55, Math.log1p) : lit;
  $("agent-title").textContent = `its path in this episode until now${back && !at.visits ? "; shaded: attention" : ""}`;
  const [x, y] = middle(task, task.cell[row]), action = task.actions[task.action[row]], move = MOVES[action];
  let here = circle("here", [x, y], 4.8, 1.3);
  if (move) {
    const [dx, dy] = move, tip = 0.56 * UNIT, wing = 3.4, back = 6.4;
    const points = [[dx * tip, dy * tip], [dx * back - dy * wing, dy * back + dx * wing], [dx * back + dy * wing, dy * back - dx * wing]];
    here += `<polygon class="here" stroke="none" points="${points.map(([px, py]) => `${x + px},${y + py}`).join(" ")}"/>`;
  }
  room($("agent"), task, shade, at.visits ? "visit" : "attend", [path(task, cells, "agent"), here]);
  const [column, line] = xy(task, task.cell[row]);
  const rows = [
    ["stands in", `column ${column}, row ${line}`],
    ["does", action === undefined ? `action ${task.action[row]}` : action],
    ...gains(task, row),
  ];
  if (task.aim) rows.push(["aims at", `${short(task.aim[row])} from here`]);
  $("agent-said").innerHTML = facts(rows);
}

function drawRead(task, row) {
  if (!task.read) return;
  const entry = entryOf(task), found = windowOf(task, row, entry), svg = $("read");
  const numbers = Array.from({ length: task.read.count }, (_, i) => i + 1);
  $("choices").innerHTML = task.read.count < 2 ? "" : `<p>window ${buttons("entry", numbers, entry)}</p>`;
  if (!found) {
    const text = `<text class="empty" x="${(task.width * UNIT) / 2}" y="${(task.height * UNIT) / 2}" text-anchor="middle">nothing: its memory is empty</text>`;
    room(svg, task, new Map(), "attend", ["", text]);
    $("read-title").textContent = "";
    $("read-said").innerHTML = facts([["from", "–"], ["its return", "–"], ["similarity", "–"], ["score", "–"]]);
    return;
  }
  const from = task.start[found.episode], cells = Array.from(task.cell.subarray(from + found.first, from + found.end));
  const attention = attentionOf(task, row, entry), shift = attention && attention.weights.length - cells.length;
  const shade = attention ? shadeOf(cells, (i) => attention.weights[shift + i], 0.8) : new Map();
  const ghost = circle("ghost", middle(task, task.cell[row]), 7.4, 1.6, "<title>the agent now</title>");
  room(svg, task, shade, "attend", [path(task, cells, "read"), circle("end read", middle(task, cells.at(-1)), 3.4, 1) + ghost]);
  $("read-title").textContent = attention ? "of its own past; shaded: attention" : "of its own past";
  $("read-said").innerHTML = facts([
    ["from", `episode ${found.episode + 1}, steps ${found.first + 1} to ${found.end}`],
    ["its return", short(found.total_return)],
    ["similarity", found.similarity.toFixed(3)],
    ["score", found.score.toFixed(3)],
  ]);
}

/** How high returns stand, zero among them, and at the left zero, the highest and, where one is negative, the lowest. */
function scaleOf(returns, top, bottom) {
  const low = Math.min(0, ...returns), high = Math.max(0, ...returns) || (low < 0 ? 0 : 1), y = scale(low, high, top, bottom);
  const apart = [low, high].filter((value) => Math.abs(y(value) - y(0)) > 9); // else its number would lie on that of zero
  return { y, numbers: [0, ...apart].map((value) => side(short(value), y(value) + 3.5)).join("") };
}

function drawReturns(task, row) {
  const count = episodes(task), wide = (RIGHT - LEFT) / count, bottom = 108, parts = [];
  const { y, numbers } = scaleOf(task.returns, 8, bottom), zero = y(0);
  const found = task.read && windowOf(task, row, entryOf(task));
  task.returns.forEach((value, e) => {
    const who = e === at.episode ? " now" : found && found.episode === e ? " read" : "", tall = Math.max(Math.abs(y(value) - zero), who ? 3 : 0.8);
    parts.push(`<rect class="bar${who}" x="${LEFT + e * wide + 0.1 * wide}" y="${value < 0 ? zero : zero - tall}" width="${0.8 * wide}" height="${tall}"/>`);
    parts.push(`<rect class="hit" data-episode="${e}" x="${LEFT + e * wide}" y="0" width="${wide}" height="${bottom + 14}"><title>episode ${e + 1}: ${short(value)}</title></rect>`);
    if (e === 0 || (e + 1) % Math.max(1, Math.ceil(count / 40) * 5) === 0)
      parts.push(`<text x="${LEFT + (e + 0.5) * wide}" y="${bottom + 13}" text-anchor="middle">${e + 1}</text>`);
  });
  $("returns").innerHTML = axis(zero) + numbers + parts.join("");
  $("returns-said").textContent = task.read ? "blue: this one; green: the one that is read" : "blue: this one";
}

/** The whole episode: what is read at each step (or the return so far), and when rewards come. */
function drawSteps(task, row) {
  const start = task.start[at.episode], count = length(task, at.episode), parts = [];
  const x = placeOf(count);
  if (task.read) {
    const y = scale(1, Math.max(2, at.episode), 14, 88), near = [], size = Math.max(1.6, Math.min(3, 150 / count));
    parts.push(side("1", 91.5), side(Math.max(2, at.episode), 17.5), atRight("episode that is read", 6));
    for (let s = 0; s < count; s++)
      for (let k = 0; k < task.read.count; k++) {
        const found = windowOf(task, start + s, k);
        if (!found) continue;
        parts.push(`<circle class="dot" cx="${x(s).toFixed(1)}" cy="${y(found.episode + 1).toFixed(1)}" r="${size}"/>`);
        if (k === task.read.count - 1) near.push([s, found.similarity]);
      }
    if (near.length) {
      const values = near.map(([, v]) => v), low = Math.min(...values), top = Math.max(...values), v = scale(low, top, 112, 150);
      parts.push(curve(near.map(([s, value]) => [x(s), v(value)]), ""), atRight("similarity", 106));
      const two = (x) => (Math.round(100 * x) / 100 + 0).toFixed(2); // never -0.00
      parts.push(side(two(low), 153.5), side(two(top), 115.5));
    }
  } else {
    const sums = returnsSoFar(task, at.episode), { y, numbers } = scaleOf(sums, 12, 150);
    parts.push(y(0) < 150 ? axis(y(0)) : "", curve(sums.map((v, s) => [x(s), y(v)]), "agent"), numbers);
  }
  $("steps").innerHTML = parts.join("") + stepAxis(task);
  $("steps-said").textContent = `${task.read ? "what it reads" : "return so far"}, and when it is paid`;
}

function drawAttention(task, row) {
  $("attention-card").hidden = !task.attention;
  if (!task.attention) return;
  $("attention").innerHTML = "";
  if (!task.read) return drawBack(task, row);
  const entry = entryOf(task), found = windowOf(task, row, entry), attention = found && attentionOf(task, row, entry);
  $("attention-said").textContent = "nothing is read";
  if (!attention) return;
  const shown = attention.weights.length, start = found.end - shown, top = Math.max(attention.top, 2 * attention.uniform);
  const weights = attention.weights.map((weight, i) => [start + i, weight]).filter(([step]) => step >= found.first);
  const exactly = (weight) => `${(100 * weight).toFixed(1)} %`;
  const parts = [attentionBars(weights, start, shown, top, 80, 74, exactly), axis(80 - (attention.uniform / top) * 74, "dotted")];
  for (const [step] of weights)
    if ((step + 1) % 5 === 0 || (step === found.first && (step + 1) % 5 < 3))
      parts.push(`<text x="${placeOf(shown)(step - start)}" y="93" text-anchor="middle">${step + 1}</text>`);
  $("attention").innerHTML = parts.join("") + atRight(`step of episode ${found.episode + 1}`, 104);
  const late = attention.row === row ? "" : `; computed at step ${attention.row - task.start[at.episode] + 1}`;
  $("attention-said").textContent = `mean over layers and heads; dotted: evenly${late}`;
}

/** How much the step that is shown reads of this episode until then. */
function drawBack(task, row) {
  const back = backOf(task, row), exactly = (weight) => `${(100 * weight).toFixed(1)} %`;
  $("attention-said").textContent = "no map in this episode yet";
  if (!back) return;
  const { weights, first, top } = back, shown = weights.length, even = 1 / shown, high = Math.max(top, 2 * even);
  const parts = [attentionBars(weights, first, shown, high, 80, 74, exactly), axis(80 - (even / high) * 74, "dotted")];
  for (const [step] of weights)
    if ((step + 1) % spacing(shown) === 0) parts.push(`<text x="${placeOf(shown)(step - first)}" y="93" text-anchor="middle">${step + 1}</text>`);
  $("attention").innerHTML = parts.join("") + atRight("step of this episode", 104);
  const late = back.row === row ? "" : `; computed at step ${back.row - task.start[at.episode] + 1}`;
  $("attention-said").textContent = `mean over layers and heads; dotted: evenly${late}`;
}

function drawPage(task, row) {
  $("read-card").hidden = !task.read;
  $("main").className = [task.width > 1.6 * task.height ? "wide" : "", task.read ? "" : "alone"].join(" ").trim();
  for (const part of [drawAgent, drawRead, drawReturns, drawSteps, drawAttention]) part(task, row);
}

$("visits").addEventListener("change", () => { at.visits = $("visits").checked; draw(); });
onClick("returns", "episode", (episode) => go({ episode }));
onClick("attention", "step", (step) => { if (!taskOf(at.task).read) go({ step }); });
onClick("choices", "entry", (entry) => { at.entry = entry; draw(); });
