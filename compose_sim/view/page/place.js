// The place in the page, kept in its address: run, moment, rank and section can be linked, and a reload keeps them. Keys move it.

const readPlace = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

function keepPlace(changes) {
  const place = Object.entries({ ...readPlace(), ...changes }).filter(([name, value]) => PLACES.includes(name) && value !== null && value !== undefined && value !== "");
  history.replaceState(null, "", `#${place.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")}`);
}

const PLACES = ["run", "t", "rank", "section"];

// Show what the address names, once there is something to show.
function restorePlace() {
  const { t, rank, section } = readPlace();
  if (t && Number.isFinite(Number(t))) { hold(Number(t), rank === undefined ? null : Number(rank)); if (run.steps.size && lanes.fitted) showAround(Number(t)); }
  if (section) goToSection(section);
}

function goToSection(name) {
  const section = document.getElementById(name);
  if (!section) return;
  section.scrollIntoView();
  keepPlace({ section: name });
}

document.addEventListener("click", (event) => {
  const link = event.target.closest && event.target.closest("a[href^='#']");
  if (!link) return;
  event.preventDefault();
  goToSection(link.getAttribute("href").slice(1));
});

// Mark the section that is in view.
function watchSections() {
  const seen = new Set(), order = [...document.querySelectorAll("nav a")].map((each) => each.getAttribute("href").slice(1));
  const observer = new IntersectionObserver((entries) => {
    for (const each of entries) if (each.isIntersecting) seen.add(each.target.id); else seen.delete(each.target.id);
    const here = order.find((name) => seen.has(name));
    for (const each of document.querySelectorAll("nav a")) each.classList.toggle("here", each.getAttribute("href") === `#${here}`);
  }, { rootMargin: "-90px 0px -55% 0px" });
  for (const name of order) observer.observe(document.getElementById(name));
  return observer;
}

const KEYS = [
  ["← →", "one step back, one step on", { ArrowLeft: () => byStep(-1), ArrowRight: () => byStep(1) }],
  ["↑ ↓", "one rank up, one rank down", { ArrowUp: () => byRank(-1), ArrowDown: () => byRank(1) }],
  ["[ ]", "the long wait before, and the next one", { "[": () => byWait(-1), "]": () => byWait(1) }],
  ["p n", "the event before, and the next one: a fault, a round, a failure", { p: () => byMark(-1), n: () => byMark(1) }],
  ["a d", "move the timeline", { a: () => pan(-1), d: () => pan(1) }],
  ["+ −", "zoom in, zoom out", { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2) }],
  ["0 s", "show the whole run, show all steps", { 0: fit, s: fitSteps }],
  ["c", "show why the step took so long: its critical path", { c: togglePath }],
  ["space", "play, pause", { " ": togglePlay }],
  ["/", "search the logs", { "/": () => { goToSection("logs"); document.querySelector("#logs input").focus(); } }],
  ["Esc", "let go of the moment", { Escape: release }],
  ["?", "show these keys", { "?": showHelp }],
];
const ACTS = Object.assign({}, ...KEYS.map(([, , acts]) => acts));

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "range";
  const act = ACTS[event.key], own = event.target.closest && event.target.closest("#log, pre, .scroll, .stacks, dialog");  // they scroll with arrows
  if (!run.now || !act || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && event.target.id === "goto") { event.target.value = ""; event.target.setCustomValidity(""); event.target.blur(); } else if (typing) return;
  if ((own && /^(Arrow| )/.test(event.key)) || (/^( |Enter)$/.test(event.key) && /^(BUTTON|A|SUMMARY)$/.test(event.target.tagName))) return;
  if (/^Arrow(Up|Down)$/.test(event.key) && document.activeElement !== lanes.canvas) return;  // they scroll the page
  event.preventDefault();
  act();
});

function showHelp() {
  const old = document.getElementById("help");
  if (old) { old.close(); return; }
  const dialog = el("dialog", { id: "help", "aria-label": "Keys" }, el("h2", {}, "Keys"), el("table", {}, KEYS.map(([keys, words]) => el("tr", {}, el("td", {}, keys.split(" ").map((each) => [el("kbd", {}, each), " "])), el("td", {}, words)))),
    el("button", { onclick: () => dialog.close() }, "Close"));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

const moment = () => (lanes.cursor === null ? endOfRun() : lanes.cursor);

function byStep(way) {
  const steps = stepsInOrder(), at = steps.findIndex((each) => each.ended > moment() - 1e-6), found = steps[Math.max(0, Math.min(steps.length - 1, (at < 0 ? steps.length : at) + way))];
  if (found) visit((found.began + found.ended) / 2, lanes.rank);
}

function byRank(way) {
  const ranks = ranksOf(run.now), at = ranks.indexOf(lanes.rank);
  visit(moment(), ranks[at < 0 ? 0 : (at + way + ranks.length) % ranks.length]);
}

function byWait(way) {
  const long = longestWaits(40).sort((a, b) => a.began - b.began), t = moment(), middle = (each) => each.began + each.lasted / 2;
  const found = way > 0 ? long.find((each) => middle(each) > t + 1e-6) : long.findLast((each) => middle(each) < t - 1e-6);
  if (found) jumpTo(found);
}

function byMark(way) {
  const marks = marksOf(run.now).map((each) => each.began).sort((a, b) => a - b), t = moment();
  const found = way > 0 ? marks.find((each) => each > t + 1e-6) : marks.findLast((each) => each < t - 1e-6);
  if (found !== undefined) visit(found, null);
}

// Hold a moment, and move the timeline only if it is out of view.
function visit(t, rank) {
  if (t < lanes.from || t > lanes.to) show(t - (lanes.to - lanes.from) / 2, t + (lanes.to - lanes.from) / 2);
  hold(t, rank);
}

// The play head: one moment of the run for the timeline, the cluster, the source, metrics and logs.
const player = { timer: null, speed: 1 };

function playerBar() {
  const head = el("input", { type: "range", id: "play-head", min: 0, max: 1000, step: "any", value: 1000, "aria-label": "Moment of the run", oninput: (event) => visit((Number(event.target.value) / 1000) * endOfRun(), lanes.rank) });
  return el("div", { id: "player" }, el("button", { id: "play", title: "Play (space)", "aria-label": "Play", onclick: togglePlay }, "▶"),
    el("span", { class: "track" }, el("span", { id: "ticks", "aria-hidden": true }), head), el("output", { id: "play-time", class: "small" }, ""),
    el("button", { id: "release", class: "text small", hidden: true, onclick: release }, run.now.is_over ? "to the end" : "live"));
}

function drawPlayer() {
  const head = document.getElementById("play-head"), all = endOfRun();
  if (!head) return;
  head.value = (1000 * moment()) / all;
  document.getElementById("play-time").textContent = lanes.cursor === null ? (run.now.is_over ? `end, ${seconds(all)}` : "live") : `${moment().toFixed(all < 100 ? 2 : 1)} s`;
  document.getElementById("release").hidden = lanes.cursor === null || !lanes.pinned;
  const marks = marksOf(run.now), key = JSON.stringify([marks.map((each) => each.began), Math.round(all)]), ticks = document.getElementById("ticks");
  if (ticks.dataset.key === key) return;
  ticks.dataset.key = key;
  ticks.replaceChildren(...marks.map((each) => { const tick = el("i", { title: each.text }); tick.style.left = `${(100 * each.began) / all}%`; tick.style.background = color(each.color); return tick; }));
}

function togglePlay() {
  const button = document.getElementById("play");
  if (player.timer) { clearInterval(player.timer); player.timer = null; button.textContent = "▶"; return; }
  const steps = stepsInOrder(), until = endOfRun(), each = 0.1;
  if (moment() >= until - 0.01) hold(steps.length ? steps[0].began : 0, lanes.rank);
  player.speed = Math.max(1, (until - moment()) / 30);  // half a minute at most
  button.textContent = "⏸";
  player.timer = setInterval(() => {
    if (moment() + each * player.speed >= until) { togglePlay(); release(); return; }
    visit(moment() + each * player.speed, lanes.rank);
  }, each * 1000);
}

function release() {
  Object.assign(lanes, { pinned: false, rank: null });
  setCursor(null);
  keepPlace({ t: null, rank: null });
}
