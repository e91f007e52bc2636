// Moving through tasks, episodes and steps, for all pages. Of the page it reads `DATA`, `at`, `$`, `go`, `taskOf`,
// `episodes`, `length` and `PACE`, the milliseconds that a played step takes.

const within = (value, count) => Math.max(0, Math.min(count - 1, value));

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
$("steps").addEventListener("click", (event) => {
  if (event.target.dataset.steps === undefined) return;
  const box = event.target.getBoundingClientRect();
  go({ step: Math.floor(((event.clientX - box.left) / box.width) * Number(event.target.dataset.steps)) });
});
