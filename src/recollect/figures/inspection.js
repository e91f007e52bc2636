// The page of a world that is drawn from above: where the agent walks, and the windows of its past that it reads.

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

/** The retrieved window of one entry (0 is the lowest return) that is read at a row of the task; null: none. */
function windowOf(task, row, entry) {
  const read = task.read;
  if (!read) return null;
  const i = row * read.count + entry;
  if (read.episode[i] < 0) return null;
  const found = { episode: read.episode[i], first: read.first[i], end: read.end[i] };
  for (const name of ["similarity", "score", "total_return"]) found[name] = read[name][i];
  return found;
}

/** The weights on the steps of each entry's window, as last computed at or before a row; null: none in this episode. */
function attentionOf(task, row, entry) {
  const attention = task.attention;
  if (!attention) return null;
  const place = mapAt(task, row);
  if (place < 0) return null;
  const width = attention.width, each = width / task.read.count, weights = [];
  for (let i = 0; i < each; i++)
    weights.push((attention.weight[place * width + entry * each + i] / 255) * attention.top[place]);
  return { weights, uniform: 1 / width, row: attention.row[place], top: attention.top[place] };
}

// --------------------------------------------------------------------------------------------------------- drawing

const middle = (task, cell) => xy(task, cell).map((v) => (v + 0.5) * UNIT);

/** Line pieces between the cells of a path, fainter the older. Each keeps to its right, so that ways back lie beside. */
function walk(task, cells, who) {
  const moves = [], shift = 0.11 * UNIT;
  for (let i = 1; i < cells.length; i++) {
    if (cells[i] === cells[i - 1]) continue;
    const from = middle(task, cells[i - 1]), to = middle(task, cells[i]), size = Math.hypot(to[0] - from[0], to[1] - from[1]);
    const aside = [(-(to[1] - from[1]) / size) * shift, ((to[0] - from[0]) / size) * shift];
    moves.push({ from, to, aside });
  }
  const same = (a, b) => Math.abs(a[0] - b[0]) + Math.abs(a[1] - b[1]) < 1e-6;
  /** How far the corner between two pieces lies from the middle of the cell: both offsets at a turn, one straight on. */
  const corner = (one, other) => {
    if (!one || !other || same(one.aside, other.aside) || same(one.aside, other.aside.map((v) => -v))) return (one || other).aside;
    return [one.aside[0] + other.aside[0], one.aside[1] + other.aside[1]];
  };
  return moves.map((move, i) => {
    const back = moves[i - 1] && same(moves[i - 1].aside, move.aside.map((v) => -v));
    const first = back ? move.aside : corner(moves[i - 1] || move, move), last = corner(move, moves[i + 1] || move);
    const [ax, ay, bx, by] = [move.from[0] + first[0], move.from[1] + first[1], move.to[0] + last[0], move.to[1] + last[1]];
    const turn = back ? `M${(ax - 2 * move.aside[0]).toFixed(2)} ${(ay - 2 * move.aside[1]).toFixed(2)}L` : "M";
    return `<path class="walk ${who}" d="${turn}${ax.toFixed(2)} ${ay.toFixed(2)}L${bx.toFixed(2)} ${by.toFixed(2)}" opacity="${(0.25 + (0.75 * (i + 1)) / moves.length).toFixed(2)}"/>`;
  }).join("");
}

function mark([name, row, column], number, many) {
  const x = (column + 0.5) * UNIT, y = (row + 0.5) * UNIT, r = 0.42 * UNIT, points = [];
  const corners = name === "key" ? 3 : 10;
  for (let i = 0; i < corners; i++) {
    const radius = corners === 3 || i % 2 === 0 ? r : r * 0.45, angle = -Math.PI / 2 + (2 * Math.PI * i) / corners;
    points.push(`${(x + radius * Math.cos(angle)).toFixed(2)},${(y + radius * Math.sin(angle)).toFixed(2)}`);
  }
  const label = many && name.startsWith("goal") ? `<text class="number" x="${x}" y="${y + 3}" text-anchor="middle" font-size="8">${number + 1}</text>` : "";
  return `<polygon class="mark" points="${points.join(" ")}"><title>${escaped(name)} (${column}, ${row})</title></polygon>${label}`;
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
  parts.push(over[0], task.marks.map((m, i) => mark(m, i, task.marks.length > 1)).join(""), over[1]);
  svg.innerHTML = parts.join("");
}

function begin(task, cell, who) {
  const [x, y] = middle(task, cell);
  return `<circle class="begin ${who}" cx="${x}" cy="${y}" r="3.4" stroke-width="1.6"/>`;
}

function drawAgent(task, row) {
  const start = task.start[at.episode], cells = Array.from(task.cell.subarray(start, row + 1)), shade = new Map();
  if (at.visits) {
    for (let i = 0; i < start; i++) shade.set(task.cell[i], (shade.get(task.cell[i]) || 0) + 1);
    const most = Math.log1p(Math.max(1, ...shade.values()));
    for (const [cell, count] of shade) shade.set(cell, (0.55 * Math.log1p(count)) / most);
  }
  const [x, y] = middle(task, task.cell[row]), action = task.actions[task.action[row]], move = MOVES[action];
  let here = `<circle class="here" cx="${x}" cy="${y}" r="4.8" stroke-width="1.3"/>`;
  if (move) {
    const [dx, dy] = move, tip = 0.56 * UNIT, wing = 3.4, back = 6.4;
    const points = [[dx * tip, dy * tip], [dx * back - dy * wing, dy * back + dx * wing], [dx * back + dy * wing, dy * back - dx * wing]];
    here += `<polygon class="here" stroke="none" points="${points.map(([px, py]) => `${x + px},${y + py}`).join(" ")}"/>`;
  }
  room($("agent"), task, shade, "visit", [walk(task, cells, "agent") + begin(task, cells[0], "agent"), here]);
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
  const entry = at.entry < 0 || at.entry >= task.read.count ? task.read.count - 1 : at.entry;
  const found = windowOf(task, row, entry), svg = $("read");
  $("choices").innerHTML = task.read.count < 2 ? "" : "<p>window " + Array.from({ length: task.read.count }, (_, i) =>
    `<button data-entry="${i}" aria-pressed="${i === entry}">${i + 1}</button>`).join(" ") + "</p>";
  if (!found) {
    const text = `<text class="empty" x="${(task.width * UNIT) / 2}" y="${(task.height * UNIT) / 2}" text-anchor="middle">nothing: its memory is empty</text>`;
    room(svg, task, new Map(), "attend", ["", text]);
    $("read-title").textContent = "";
    $("read-said").innerHTML = facts([["from", "–"], ["its return", "–"], ["similarity", "–"], ["score", "–"]]);
    return;
  }
  const from = task.start[found.episode], cells = Array.from(task.cell.subarray(from + found.first, from + found.end));
  const attention = attentionOf(task, row, entry), shade = new Map();
  if (attention) {
    const shift = attention.weights.length - cells.length;
    cells.forEach((cell, i) => shade.set(cell, (shade.get(cell) || 0) + attention.weights[shift + i]));
    const most = Math.max(...shade.values());
    for (const [cell, weight] of shade) shade.set(cell, most > 0 ? (0.8 * weight) / most : 0);
  }
  const [x, y] = middle(task, task.cell[row]), [ex, ey] = middle(task, cells[cells.length - 1]);
  const end = `<circle class="end read" cx="${ex}" cy="${ey}" r="3.4"/><circle class="ghost" cx="${x}" cy="${y}" r="7.4" stroke-width="1.6"><title>the agent now</title></circle>`;
  room(svg, task, shade, "attend", [walk(task, cells, "read") + begin(task, cells[0], "read"), end]);
  $("read-title").textContent = attention ? "of its own past; shaded: attention" : "of its own past";
  $("read-said").innerHTML = facts([
    ["from", `episode ${found.episode + 1}, steps ${found.first + 1} to ${found.end}`],
    ["its return", short(found.total_return)],
    ["similarity", found.similarity.toFixed(3)],
    ["score", found.score.toFixed(3)],
  ]);
}

function drawReturns(task, row) {
  const count = episodes(task), most = Math.max(0, ...task.returns) || 1, wide = (RIGHT - LEFT) / count, high = 100, parts = [];
  const found = task.read && windowOf(task, row, at.entry < 0 ? task.read.count - 1 : at.entry);
  task.returns.forEach((value, e) => {
    const tall = (Math.max(0, value) / most) * high, who = e === at.episode ? " now" : found && found.episode === e ? " read" : "";
    parts.push(`<rect class="bar${who}" x="${LEFT + e * wide + 0.1 * wide}" y="${8 + high - Math.max(tall, who ? 3 : 0)}" width="${0.8 * wide}" height="${Math.max(tall, who ? 3 : 0.8)}"/>`);
    parts.push(`<rect class="hit" data-episode="${e}" x="${LEFT + e * wide}" y="0" width="${wide}" height="${high + 22}"><title>episode ${e + 1}: ${short(value)}</title></rect>`);
    if (e === 0 || (e + 1) % Math.max(1, Math.ceil(count / 40) * 5) === 0)
      parts.push(`<text x="${LEFT + (e + 0.5) * wide}" y="${high + 21}" text-anchor="middle">${e + 1}</text>`);
  });
  parts.unshift(`<line class="axis" x1="${LEFT}" x2="${RIGHT}" y1="${8 + high}" y2="${8 + high}"/><text x="${LEFT - 5}" y="${high + 11}" text-anchor="end">0</text><text x="${LEFT - 5}" y="13" text-anchor="end">${short(most)}</text>`);
  $("returns").innerHTML = parts.join("");
  $("returns-said").textContent = task.read ? "blue: this one; green: the one that is read" : "blue: this one";
}

/** The whole episode: what is read at each step (or the return so far), and when rewards come. */
function drawSteps(task, row) {
  const start = task.start[at.episode], count = length(task, at.episode), parts = [];
  const x = placeOf(count);
  const scale = (low, high, top, bottom) => (value) => bottom - ((value - low) / Math.max(high - low, 1e-9)) * (bottom - top);
  const side = (text, y) => `<text x="${LEFT - 5}" y="${y + 3.5}" text-anchor="end">${text}</text>`;
  if (task.read) {
    const y = scale(1, Math.max(2, at.episode), 8, 88), near = [], size = Math.max(1.6, Math.min(3, 150 / count));
    parts.push(side("1", 88), side(Math.max(2, at.episode), 8), `<text x="${RIGHT}" y="4" text-anchor="end">episode that is read</text>`);
    for (let s = 0; s < count; s++)
      for (let k = 0; k < task.read.count; k++) {
        const found = windowOf(task, start + s, k);
        if (!found) continue;
        parts.push(`<circle class="dot" cx="${x(s).toFixed(1)}" cy="${y(found.episode + 1).toFixed(1)}" r="${size}"/>`);
        if (k === task.read.count - 1) near.push([s, found.similarity]);
      }
    if (near.length) {
      const values = near.map(([, v]) => v), low = Math.min(...values), top = Math.max(...values), v = scale(low, top, 112, 150);
      parts.push(`<polyline class="curve" points="${near.map(([s, value]) => `${x(s).toFixed(1)},${v(value).toFixed(1)}`).join(" ")}"/>`);
      parts.push(side(low.toFixed(2), 150), side(top.toFixed(2), 112), `<text x="${RIGHT}" y="106" text-anchor="end">similarity</text>`);
    }
  } else {
    const sums = returnsSoFar(task, at.episode), top = Math.max(0, ...sums) || 1, y = scale(0, top, 12, 150);
    parts.push(`<polyline class="curve agent" points="${sums.map((v, s) => `${x(s).toFixed(1)},${y(v).toFixed(1)}`).join(" ")}"/>`, side("0", 150), side(short(top), 12));
  }
  parts.push(stepAxis(task, side("reward", 164)));
  $("steps").innerHTML = parts.join("");
  $("steps-title").innerHTML = task.read ? "This episode, step by step <span>what it reads, and when it is paid</span>" : "This episode, step by step <span>return so far, and when it is paid</span>";
}

function drawAttention(task, row) {
  $("attention-card").hidden = !task.attention;
  if (!task.attention) return;
  const entry = at.entry < 0 || at.entry >= task.read.count ? task.read.count - 1 : at.entry;
  const found = windowOf(task, row, entry), attention = found && attentionOf(task, row, entry), svg = $("attention");
  if (!attention) { svg.innerHTML = ""; $("attention-said").textContent = "nothing is read"; return; }
  const weights = attention.weights, wide = (RIGHT - LEFT) / weights.length, top = Math.max(attention.top, 2 * attention.uniform), high = 74, parts = [];
  weights.forEach((value, i) => {
    const step = found.end - weights.length + i;
    if (step < found.first) return;
    const tall = (value / top) * high;
    parts.push(`<rect class="attend" x="${LEFT + i * wide + 0.08 * wide}" y="${6 + high - tall}" width="${0.84 * wide}" height="${tall}"/>`);
    parts.push(`<rect class="hit" x="${LEFT + i * wide}" y="0" width="${wide}" height="${high + 8}"><title>step ${step + 1}: ${(100 * value).toFixed(1)} %</title></rect>`);
    if ((step + 1) % 5 === 0 || (step === found.first && (step + 1) % 5 < 3)) parts.push(`<text x="${LEFT + (i + 0.5) * wide}" y="${high + 19}" text-anchor="middle">${step + 1}</text>`);
  });
  const even = 6 + high - (attention.uniform / top) * high;
  parts.push(`<line class="dotted" x1="${LEFT}" x2="${RIGHT}" y1="${even}" y2="${even}"/><line class="axis" x1="${LEFT}" x2="${RIGHT}" y1="${6 + high}" y2="${6 + high}"/>`);
  parts.push(`<text x="${LEFT - 4}" y="14" text-anchor="end">${percent(top)}</text><text x="${RIGHT}" y="${high + 30}" text-anchor="end">step of episode ${found.episode + 1}</text>`);
  svg.innerHTML = parts.join("");
  const late = attention.row === row ? "" : `; computed at step ${attention.row - task.start[at.episode] + 1}`;
  $("attention-said").textContent = `mean over layers and heads; dotted: evenly${late}`;
}

function drawPage(task, row) {
  $("read-card").hidden = !task.read;
  $("main").className = task.width > 1.6 * task.height && task.read ? "wide" : task.read ? "" : "alone";
  for (const part of [drawAgent, drawRead, drawReturns, drawSteps, drawAttention]) part(task, row);
}

$("visits").addEventListener("change", () => { at.visits = $("visits").checked; draw(); });
$("returns").addEventListener("click", (event) => {
  if (event.target.dataset.episode !== undefined) go({ episode: Number(event.target.dataset.episode) });
});
$("choices").addEventListener("click", (event) => {
  if (event.target.dataset.entry !== undefined) { at.entry = Number(event.target.dataset.entry); draw(); }
});
