// The source of the script, with a dot where each rank is at the moment that is shown, and what waits each line had.

const pane = { file: "" };

function sourceOf(file) {
  return run.sources.get(shortPath(file)) || [...run.sources].filter(([name]) => name.endsWith(`/${file}`)).map(([, source]) => source)[0] || null;
}

function sourceSection() {
  if (!run.sources.size) return null;
  const files = [...run.sources.keys()];
  if (!run.sources.has(pane.file)) pane.file = files.find((each) => run.now.program && run.now.program.split(" ")[0].endsWith(each)) || files[0];
  const { first, lines } = run.sources.get(pane.file), waits = waitsByLine(pane.file), times = timesByLine(pane.file), most = Math.max(1e-9, ...[...waits.values()].map((each) => each.total), ...times.values());
  const barOf = (kind, value, title) => { if (!value) return null; const bar = el("b", { class: kind, title }); bar.style.width = `${Math.max(2, (100 * value) / most)}%`; return [bar, el("small", {}, seconds(value))]; };
  const rows = lines.map((text, index) => {
    const wait = waits.get(first + index) || { total: 0 }, time = times.get(first + index) || 0;
    return el("div", { id: `line-${first + index}` }, el("span", { class: "dots" }), el("span", { class: "heat" }, barOf("own", time, `ranks were here for ${seconds(time)}, sampled ten times per second`)),
      el("span", { class: "heat" }, barOf("waited", wait.total, `ranks waited ${seconds(wait.total)} here, in ${count(wait.count, "collective")}`)), el("i", {}, String(first + index)), text);
  });
  return el("section", { id: "source" }, el("h2", {}, "Source", el("small", {}, "a dot is a rank at the moment that is shown; the first bar, how long ranks were in a line; the second, how long they waited there")),
    el("div", { class: "card" }, files.length > 1 ? el("div", { class: "bar" }, el("select", { "aria-label": "File", onchange: (event) => { pane.file = event.target.value; BUILT.delete("source"); render(); } }, files.map((each) => el("option", { value: each, selected: each === pane.file }, each)))) : null,
      keepScroll(el("pre", { class: "source whole", tabindex: 0, "aria-label": `${pane.file}, with ranks` }, rows))));
}

function waitsByLine(file) {
  const found = new Map();
  for (const wait of run.waits.values()) {
    const place = PLACE.exec(run.texts[wait.text]);
    if (!place || !isFile(place[1], file)) continue;
    const line = found.get(Number(place[2])) || { total: 0, count: 0 };
    found.set(Number(place[2]), { total: line.total + wait.total, count: line.count + 1 });
  }
  return found;
}

// Line -> seconds that all ranks together were there, outside of waits.
function timesByLine(file) {
  const found = new Map();
  for (const { place, lasted } of [...run.lines.values()].flat()) if (isFile(place[0], file)) found.set(place[1], (found.get(place[1]) || 0) + lasted);
  return found;
}

const isFile = (one, other) => shortPath(one) === other || other.endsWith(`/${one}`);

// Where a rank is at a time: in a collective, or where it stands in a hang.
function placeOf(rank, t) {
  const hang = run.now.hang, stands = hang && (t === null || within(run.now.stalls[rank], t)) && (hang.ranks || []).find((each) => each.rank === rank);
  const cause = run.now.cause, died = cause && cause.rank === rank && t === null ? framesIn(cause.traceback || "").findLast((each) => !isLibrary(each)) : null;
  if (died) return died;
  const own = stands && stands.frames.find((each) => !isLibrary(each));
  if (own) return [own[0], own[1]];
  const act = doing(rank, t), place = PLACE.exec(act.what || ""), line = t === null ? null : lineDuring(rank, t, t + 1e-6);
  return place ? [place[1], Number(place[2])] : t === null ? lineNow(rank) : line && line.place;
}

function drawDots() {
  const whole = document.querySelector("#source pre");
  if (!whole) return;
  const t = lanes.cursor, at = new Map();
  for (const rank of ranksOf(run.now)) {
    const place = placeOf(rank, t);
    if (place && isFile(place[0], pane.file)) listIn(at, place[1]).push(rank);
  }
  const late = new Set(collectivesAt(t).flatMap((each) => (each.kind === "waiting" ? each.all : []))), key = JSON.stringify([pane.file, [...at], [...late]]);
  if (whole.dataset.dots === key) return;
  whole.dataset.dots = key;
  for (const each of whole.querySelectorAll(".dots")) if (each.firstChild) each.replaceChildren();
  for (const [line, ranks] of at) {
    const place = document.getElementById(`line-${line}`);
    if (place) place.firstChild.replaceChildren(...(ranks.length > 4 ? [el("em", { class: "dot" }, `${ranks.length}×`)] : ranks.map((rank) => el("em", { class: late.has(rank) ? "dot late" : "dot", title: nameOf(rank) }, String(rank)))));
  }
}

// Of a running run, waits by line change all the time: whoever reads the source stays where they are.
function keepScroll(pre) {
  const old = document.querySelector("#source pre"), top = old && old.getAttribute("aria-label") === pre.getAttribute("aria-label") ? old.scrollTop : 0;
  requestAnimationFrame(() => { pre.scrollTop = top; });
  return pre;
}

function showSource(file, line) {
  const name = [...run.sources.keys()].find((each) => each === shortPath(file) || each.endsWith(`/${file}`));
  if (name !== pane.file) { pane.file = name; BUILT.delete("source"); render(); }
  const row = document.getElementById(`line-${line}`), box = document.querySelector("#source pre");
  for (const each of document.querySelectorAll("#source .at")) each.classList.remove("at");
  goToSection("source");
  if (row) { row.classList.add("at"); requestAnimationFrame(() => { box.scrollTop = row.offsetTop - box.clientHeight / 2; }); }
}
