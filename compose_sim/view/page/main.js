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
  document.title = `${now.run} · composesim`;
  section("head", [headKey(now)], () => el("header", { id: "head" }, headOf(now)));
  showAge();
  section("overview", [now.is_over, now.cause, now.t, now.metrics, now.nodes, now.phases, now.faults, now.rounds, now.notes], overviewSection);
  section("hang", now.hang, hangSection);
  section("timeline", 1, timelineSection);
  section("checks", [now.checks, now.sources], checksSection);
  section("metrics", [run.metrics.size, [...run.metrics.values()].map((each) => [...each.values()].map((points) => points.length)), now.t], metricsSection);
  section("samples", now.samples, samplesSection);
  section("logs", 1, logsSection);
  showActions(now);
  drawShares(now);
  draw();
  drawCluster();
  addLogs();
  navigation(now);
  footer(now);
}

const headKey = (now) => [now.run, now.verdict, Boolean(now.hang), now.checks.map((each) => each.status), now.versions, now.ranks.length, now.nodes.length, live.runs];

function navigation(now) {
  const problems = now.checks.filter((each) => ["failed", "warned"].includes(each.status)).length;
  const links = [["overview", "Overview"], ["hang", "Hang", 1], ["timeline", "Timeline"], ["cluster", "Cluster"], ["checks", "Checks", problems], ["metrics", "Metrics"], ["samples", "Samples"], ["logs", "Logs"]];
  section("nav", links.map(([name]) => !document.getElementById(name).hidden).concat(problems), () =>
    el("nav", { id: "nav", "aria-label": "Sections" }, links.filter(([name]) => !document.getElementById(name).hidden).map(([name, text, n]) => el("a", { href: `#${name}` }, text, n ? el("span", { class: "count" }, String(n)) : null))));
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
}

start();
