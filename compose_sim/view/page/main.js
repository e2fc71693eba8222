// Build the page, and keep it up to date with the messages of a live run.

const BUILT = new Map();  // section -> what it was built from, so that a section is built again only if that has changed

function section(name, values, build) {
  const key = JSON.stringify([values]);
  if (BUILT.get(name) === key) return;
  BUILT.set(name, key);
  const made = build(run.now), old = document.getElementById(name);
  if (made && old) old.replaceWith(made);
  else if (old) old.replaceWith(el("section", { id: name, hidden: true }));
  else document.getElementById("main").append(made || el("section", { id: name, hidden: true }));
}

function render() {
  const now = run.now;
  for (const each of live.runs) if (each.name === now.run && now.is_over) each.is_running = false;
  const state = verdictPill(now).textContent;
  document.title = `${state[0]} ${now.run} · composesim`;
  section("head", [now.program, now.versions, now.ranks.length, now.nodes.length, live.runs, live.shown], () => el("header", { id: "head" }, headOf(now)));
  showAge();
  const open = openWait();  // the words of its card do not change while it goes on, so that they can be read and copied
  section("overview", [open && [open.ranks, open.all, open.what, open.all.map(lineNow)], now.is_over, now.cause, now.t, now.metrics, now.nodes, now.phases, now.faults, now.rounds, now.notes, run.sources.size, run.waits.size], overviewSection);
  section("timeline", 1, timelineSection);
  section("hang", [now.hang, run.sources.size], hangSection);
  section("source", [run.sources.size, pane.file, now.is_over ? run.waits.size : Math.floor(now.t / 5)], sourceSection);
  section("checks", [now.checks, run.sources.size], checksSection);
  section("metrics", [run.metrics.size, [...run.metrics.values()].map((each) => [...each.values()].map((points) => points.length)), now.is_over || Math.floor(now.t / 3)], metricsSection);
  section("samples", now.samples, samplesSection);
  section("compare", [now.against ? now.against.now.run : "", compared.other ? compared.other.now.run : "", now.t], compareSection);
  section("logs", 1, logsSection);
  showActions(now);
  drawShares(now);
  draw();
  navigation(now, state);
  drawPlayer();
  drawCluster();
  drawWhy();
  drawDots();
  addLogs();
  footer(now);
}

const LINKS = [["overview", "Overview"], ["timeline", "Timeline"], ["cluster", "Cluster"], ["shares", "Ranks"], ["hang", "Hang", 1], ["source", "Source"], ["checks", "Checks"], ["metrics", "Metrics"], ["samples", "Samples"], ["compare", "Compare"], ["logs", "Logs"]];
let watching = null;

// The bar that stays in view: name and verdict, the sections, and the play head.
function navigation(now, state) {
  const problems = now.checks.filter((each) => ["failed", "warned"].includes(each.status)).length, links = LINKS.filter(([name]) => { const at = document.getElementById(name); return at && !at.hidden; });
  const old = BUILT.get("nav");
  section("nav", [now.run, state, links.map(([name]) => name), problems], () =>
    el("nav", { id: "nav", "aria-label": "Sections" }, el("h1", {}, now.run), verdictPill(now), links.map(([name, text, n]) => { const found = name === "checks" ? problems : n; return el("a", { href: `#${name}` }, text, found ? el("span", { class: "count" }, String(found)) : null); })));
  if (old === BUILT.get("nav")) return;
  if (watching) watching.disconnect();
  watching = watchSections();
  const player = document.getElementById("player");
  if (player.hidden) player.replaceWith(playerBar());
}

function footer(now) {
  const old = document.querySelector("footer"), made = el("footer", {}, (now.left_out || []).map((each) => el("p", {}, each)), el("p", {}, "Made by composesim. Nothing on this page is loaded from elsewhere."));
  if (old) old.replaceWith(made); else document.getElementById("main").append(made);
}

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  document.getElementById("main").replaceChildren();
  if (data === null) { follow(); return; }
  take(data);
  render();
  restorePlace();
}

start();
