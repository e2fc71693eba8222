// The timeline: one lane per rank, with what it computes above and the collectives that it is in below; marks of the run on top.

const NAMES = ["loads data", "forward", "backward", "optimizer", "saves or loads a checkpoint", "waits", "moves data", "collective"];
const COLORS = ["--data", "--forward", "--backward", "--optimizer", "--checkpoint", "--waiting", "--moving", "--collective"];
const AXIS = 24, HATCHED = 20;  // pixels; in lower lanes nobody sees stripes, and they take half of the time of a frame
const WIDEST_CELL = 6;  // pixels: of a narrower step only what took longest in it is drawn
let marksHeight = 6;  // the room for marks above the lanes
const lanes = { from: 0, to: 1, fitted: true, cursor: null, pinned: false, canvas: null, over: null, width: 0, wanted: false, rank: null, path: false };

function timelineSection() {
  const canvas = el("canvas", { id: "lanes", tabindex: 0, role: "application", "aria-describedby": "lane-keys moment-words", "aria-label": "Timeline: a lane for each rank. Arrow keys go from step to step and from rank to rank; the moment is described below, and by rank in the table." });
  lanes.canvas = canvas;
  lanes.over = el("canvas", { id: "over", "aria-hidden": "true" });  // the moment alone: a pointer that moves repaints no lane
  canvas.addEventListener("wheel", onWheel, { passive: false });
  canvas.addEventListener("pointerdown", onDown);
  canvas.addEventListener("pointermove", onHover);
  canvas.addEventListener("pointerleave", () => { showTip(""); if (!lanes.pinned) setCursor(null); });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, timeAt(event)));
  new ResizeObserver(draw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  const button = (label, title, act) => el("button", { title, "aria-label": title, onclick: act }, label);
  return el("section", { id: "timeline" },
    el("div", { class: "bar" }, el("h2", {}, "Timeline", el("small", { id: "span-words" })),
      el("input", { id: "goto", class: "push", size: 13, placeholder: "12.5 or 12:03:07", "aria-label": "Go to a time: seconds since the start, or the time of day", onchange: (event) => goTo(event.target) }), button("−", "Zoom out", () => zoom(2)), button("+", "Zoom in", () => zoom(0.5)),
      button("All", "Show the whole run", fit), button("Steps", "Show all steps", fitSteps), button("?", "Show the keys", showHelp)),
    el("div", { class: "card" },
      el("div", { class: "bar" },
        el("details", { class: "key", open: innerWidth >= 700 }, el("summary", { class: "small dim" }, "Colors"), el("span", { class: "legend" }, Object.keys(KIND).map((name) =>
          el("span", {}, el("i", { class: name }), { data: "loads data", waiting: "waits for a rank", moving: "moves data" }[name] || name)), el("span", {}, el("i", { class: "late" }), "others wait for it")))),
      heatCanvas(), el("div", { class: "layers" }, canvas, lanes.over), el("p", { class: "small", id: "why", hidden: true }),
      el("p", { class: "small dim", id: "lane-keys" }, "Drag to move, Ctrl and the wheel or double click to zoom, click to hold a moment in all parts of the page. Keys: ← → steps, [ ] long waits, ? all keys.")),
    actionsCard(run.now),
    el("div", { class: "card", id: "cluster" }, el("h3", {}, "Cluster ", el("span", { class: "dim small", id: "moment" })), el("div", { id: "picture" })),
    el("div", { class: "card scroll", id: "shares", tabindex: 0, "aria-label": "Where the time of each rank went" }),
    el("div", { class: "card", id: "waits" }));
}

function fit() { Object.assign(lanes, { ...extent(), fitted: true }); draw(); }

const extent = () => ({ from: 0, to: endOfRun() * 1.01 });

function fitSteps() {
  const steps = stepsInOrder();
  if (steps.length) show(Math.min(...steps.map((each) => each.began)), Math.max(...steps.map((each) => each.ended)));
}

const pan = (way) => show(lanes.from + (way * (lanes.to - lanes.from)) / 8, lanes.to + (way * (lanes.to - lanes.from)) / 8);

// A moment with what is around it: as much as a few steps take, or an eighth of what is shown.
function showAround(t, wide = 0) {
  const step = stepsInOrder().find((each) => each.began <= t && t <= each.ended), around = wide || (step ? 1.2 * (step.ended - step.began) : Math.max(0.05, (lanes.to - lanes.from) / 16));
  show(t - around, t + around);
}

function show(from, to) {
  const all = extent(), width = Math.max(0.0002, Math.min(to - from, all.to - all.from));
  lanes.from = Math.max(all.from, Math.min(from, all.to - width));
  lanes.to = lanes.from + width;
  lanes.fitted = width >= (all.to - all.from) * 0.999;
  draw();
}

function zoom(factor, at = (lanes.from + lanes.to) / 2) {
  show(at - (at - lanes.from) * factor, at + (lanes.to - at) * factor);
}

// The width is that of the last paint: asking the browser for it once per span would take most of the time of a frame.
const labelWidth = () => (lanes.width < 500 ? 34 : 116);
const xOf = (t) => labelWidth() + ((t - lanes.from) / (lanes.to - lanes.from)) * (lanes.width - labelWidth());
const timeAt = (event) => lanes.from + ((event.clientX - lanes.canvas.getBoundingClientRect().left - labelWidth()) / (lanes.canvas.clientWidth - labelWidth())) * (lanes.to - lanes.from);
const laneHeight = (ranks) => Math.max(12, Math.min(44, Math.floor(900 / Math.max(1, ranks))));

function draw() {
  if (lanes.wanted || !lanes.canvas) return;
  lanes.wanted = true;
  requestAnimationFrame(() => { lanes.wanted = false; if (run.now) paint(); });
}

function paint() {
  if (lanes.fitted) Object.assign(lanes, extent());
  marksHeight = 6 + Math.min(3, marksOf(run.now).length) * 16;
  const { canvas } = lanes, ranks = ranksOf(run.now), high = laneHeight(ranks.length), width = lanes.width = canvas.clientWidth;
  const height = AXIS + marksHeight + ranks.length * high + 6, scale = devicePixelRatio || 1;
  const pen = canvas.getContext("2d"), pixels = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) {
    canvas.style.height = `${height}px`;
    [canvas.width, canvas.height] = pixels;
  }
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const paints = COLORS.map(color), awaits = awaitedAt(), perStep = ((width - labelWidth()) * stepLength()) / (lanes.to - lanes.from);
  if (high >= HATCHED) paints[KIND.waiting] = hatch(pen, color("--waiting"), color("--waiting-soft"));
  const base = color("--lane"), ink = color("--ink"), dim = color("--dim"), bad = color("--bad"), card = color("--card"), accent = color("--accent"), left = labelWidth();
  ranks.forEach((rank, index) => {
    const y = AXIS + marksHeight + index * high, room = high - (high > 20 ? 6 : 2);
    pen.fillStyle = base;
    for (const [began, ended] of run.now.lives[rank] || []) box(pen, xOf(began), y, xOf(ended === null ? run.now.t : ended) - xOf(began), room, left);
    startOf(pen, rank, y, room, left, dim);
    absences(pen, rank, y, room, left, dim);
    const upper = Math.round(room * 0.58);
    if (perStep < WIDEST_CELL) cells(pen, rank, y, room, paints, left);
    else {
      row(pen, run.spans.get(`${rank}/0`), y, upper, paints, left, width);
      row(pen, run.spans.get(`${rank}/1`), y + upper, room - upper, paints, left, width);
    }
    pen.fillStyle = bad;  // the strong color is for who is awaited, and not for who waits
    for (const [began, ended] of awaits.get(rank) || []) box(pen, xOf(began), y + upper, xOf(ended) - xOf(began), room - upper, left);
    for (const fault of run.now.faults) {
      if (!fault.nodes.includes(nodeOf(rank, fault.begun_s)) || (fault.rank ?? rank) !== rank) continue;
      pen.fillStyle = color("--warn");
      pen.globalAlpha = 0.35;
      box(pen, xOf(fault.begun_s), y, xOf(fault.healed_s === null ? run.now.t : fault.healed_s) - xOf(fault.begun_s), room, left);
      pen.globalAlpha = 1;
    }
    const wait = currentOf(rank);
    if (wait && wait.began !== null) { pen.fillStyle = paints[KIND[wait.kind]]; box(pen, xOf(wait.began), y + upper, xOf(Math.max(run.now.t, wait.began + wait.lasted)) - xOf(wait.began), room - upper, left); }
    for (const [began, ended, waits] of run.now.stalls[rank] || []) {
      pen.fillStyle = (run.now.hang ? run.now.hang.rank === rank : !waits) ? bad : paints[KIND.waiting];
      box(pen, xOf(began), y + upper, xOf(ended === null ? run.now.t : ended) - xOf(began), room - upper, left);
    }
    places(pen, rank, y, room, left, dim, card);
    pen.fillStyle = card;
    pen.fillRect(0, y - 1, left - 4, high);
    pen.fillStyle = rank === lanes.rank ? accent : ink;
    pen.textAlign = "left";
    if (high >= 14 || index % 4 === 0) {
      pen.fillText(width < 500 ? `r${rank}` : `rank ${rank}`, 2, y + room / 2);
      pen.fillStyle = dim;
      if (width >= 500 && !hasMoved(rank)) pen.fillText(nodeOf(rank), 56, y + room / 2, 56);
    }
  });
  if (!Object.keys(run.now.lives).length) {
    pen.fillStyle = dim;
    pen.fillText(run.now.is_over ? "No rank has started." : "No rank has started yet.", left + 12, AXIS + marksHeight + 14);
  }
  axis(pen, width, height, dim, left);
  marks(pen, width, height, left);
  ends(pen, ranks, high, left);
  paintPath(pen, ranks, high, AXIS + marksHeight);
  paintMoment();
  paintHeat(width);
  const words = document.getElementById("span-words");
  if (words) words.textContent = lanes.fitted ? "the whole run" : `${seconds(lanes.to - lanes.from)} from ${lanes.from.toFixed(3)} s`;
}

function paintMoment() {
  const { canvas, over } = lanes, scale = devicePixelRatio || 1;
  over.style.height = canvas.style.height;
  if (over.width !== canvas.width || over.height !== canvas.height) [over.width, over.height] = [canvas.width, canvas.height];
  const pen = over.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, over.width, over.height);
  if (lanes.cursor === null || xOf(lanes.cursor) < labelWidth()) return;
  pen.fillStyle = color("--ink");
  pen.fillRect(xOf(lanes.cursor), AXIS - 4, lanes.pinned ? 2 : 1, over.height);
}

// Rank -> when others waited for it: [began, ended].
function awaitedAt() {
  const found = new Map(), least = noticeable(), hang = run.now.hang;
  for (const wait of run.waits.values()) {
    if (wait.lasted < least || wait.ended < lanes.from || wait.began > lanes.to || ownWait(wait.late, wait.began, wait.ended).lasted > wait.lasted / 2) continue;
    listIn(found, wait.late).push([wait.began, wait.began + wait.lasted]);
  }
  const open = openWait();
  for (const rank of open ? open.all : []) listIn(found, rank).push([run.now.t - open.lasted, run.now.t]);
  if (hang && hang.rank !== null && !run.now.is_over) listIn(found, hang.rank).push([stallOf(run.now, hang.rank) ?? run.now.t, run.now.t]);
  return found;
}

function stepLength() {
  const steps = stepsInOrder();
  return steps.length ? (Math.max(...steps.map((each) => each.ended)) - steps[0].began) / steps.length : Infinity;
}

// Before its first step: the node starts, meets the others, and the rank imports what the script needs.
function startOf(pen, rank, y, room, left, dim) {
  const life = (run.now.lives[rank] || [])[0], node = life && run.now.starts[life[2]], init = run.now.inits[rank] || [];
  if (!life || node === undefined) return;
  const first = (run.spans.get(`${rank}/0`) || run.spans.get(`${rank}/1`) || [])[0], ready = Math.min(init[0] ?? Infinity, first ? first.began : Infinity, life[1] ?? run.now.t, run.now.t);
  for (const [from, to, words, strong] of [[0, node, "node starts", 0], [node, life[0], "nodes meet", 1], [life[0], ready, "imports", 0], [init[0], init[1], "joins the group", 1]]) {
    if (from === undefined || to === undefined || to - from < 0.01) continue;
    labeled(pen, from, to, words, strong, y, room, left, dim);
  }
}

// A gray block with words, if they fit.
function labeled(pen, from, to, words, strong, y, room, left, dim) {
  const x = Math.max(left, xOf(from)), wide = Math.min(lanes.width, xOf(to)) - x;
  if (wide < 1) return;
  pen.fillStyle = color(strong ? "--line" : "--soft");
  pen.fillRect(x, y, wide - 1, room);
  pen.fillStyle = dim;
  pen.textAlign = "left";
  if (room >= 12 && pen.measureText(words).width + 10 < wide) pen.fillText(words, x + 5, y + room / 2);
}

// While a rank is not there, its lane says so.
function absences(pen, rank, y, room, left, dim) {
  const lives = run.now.lives[rank] || [], state = ofMessage(run.now).states.get(rank), all = endOfRun();
  lives.forEach(([, ended], index) => {
    const next = lives[index + 1], until = next ? next[0] : all, words = next || !state ? "" : stateOfRank(run.now, state).words;
    if (ended !== null && until - ended > all / 50) labeled(pen, ended, until, words || `no rank ${rank}`, 0, y, room, left, dim);
  });
}

const hasMoved = (rank) => new Set((run.now.lives[rank] || []).map(([, , node]) => node)).size > 1;

// The nodes of a rank that has moved, each where it began there.
function places(pen, rank, y, room, left, dim, card) {
  pen.textAlign = "left";
  for (const [began, ended, node] of hasMoved(rank) ? run.now.lives[rank] : []) {
    const x = Math.max(left, xOf(began)) + 2, wide = pen.measureText(node).width;
    if (Math.min(lanes.width, xOf(ended ?? run.now.t)) - x < wide + 8 || room < 12) continue;
    pen.fillStyle = card;
    pen.fillRect(x, y + 1, wide + 6, 14);
    pen.fillStyle = dim;
    pen.fillText(node, x + 3, y + 8);
  }
}

// One cell for each step: its color is what took longest; other code, which is in no span, has the color of the lane.
function cells(pen, rank, y, room, paints, left) {
  const last = { x: -1, did: null };
  for (const step of stepsInOrder()) {
    const did = step.did.get(rank);
    if (!did || step.ended < lanes.from || step.began > lanes.to) continue;
    const x = xOf(step.began), wide = Math.max(1, xOf(step.ended) - x);
    if (Math.floor(x) === last.x) continue;
    last.x = Math.floor(x);
    const most = Math.max(...did);
    if (most < step.ended - step.began - did.reduce((sum, each) => sum + each, 0)) continue;
    pen.fillStyle = paints[did.indexOf(most)];
    box(pen, x, y, wide > 3 ? wide - 0.5 : wide, room, left);
  }
}

// How lanes ended: a cross for the first failure, a square for ranks that were stopped because of it.
function ends(pen, ranks, high, left) {
  const cause = run.now.cause;
  if (!cause || run.now.hang) return;
  pen.textAlign = "center";
  ranks.forEach((rank, index) => {
    const t = endOfLife(rank), state = ofMessage(run.now).states.get(rank);
    if (t === null || xOf(t) < left || !(rank === cause.rank || (state && state.stopped))) return;
    pen.fillStyle = color(rank === cause.rank ? "--bad" : "--dim");
    pen.font = `${rank === cause.rank ? "bold 18" : "11"}px system-ui, sans-serif`;
    pen.fillText(rank === cause.rank ? "✕" : "■", Math.min(lanes.width - 8, xOf(t)), AXIS + marksHeight + index * high + high / 2 - 3);
  });
  pen.font = "12px system-ui, sans-serif";
}

// When a rank ended, if it has.
function endOfLife(rank) {
  const lives = run.now.lives[rank] || [], last = lives[lives.length - 1];
  return last && last[1] !== null ? last[1] : null;
}

// Spans that are narrower than a pixel share it: it has the color of what took longest in it, and is fainter if little happened.
function row(pen, spans, y, high, paints, left, width) {
  if (!spans) return;
  const perPixel = (lanes.to - lanes.from) / (width - left);
  let column = -1, times = [];
  const flush = () => {
    const busy = times.reduce((sum, each) => sum + (each || 0), 0);
    if (!busy) return;
    pen.globalAlpha = Math.min(1, 0.2 + busy / perPixel);
    pen.fillStyle = paints[times.reduce((best, each, kind) => ((each || 0) > (times[best] || 0) ? kind : best), 0)];
    box(pen, column, y, 1, high, left);
    pen.globalAlpha = 1;
    times = [];
  };
  for (let index = Math.max(0, firstAfter(spans, lanes.from) - 1); index < spans.length; index += 1) {
    const span = spans[index], x = xOf(span.began), wide = span.lasted / perPixel;
    if (x > width) break;
    if (Math.floor(x) !== column || wide >= 1) flush();
    if (wide >= 1) {
      pen.fillStyle = paints[span.kind];
      box(pen, x, y, wide, high, left);
    } else {
      column = Math.floor(x);
      times[span.kind] = (times[span.kind] || 0) + span.lasted;
    }
  }
  flush();
}

function box(pen, x, y, wide, high, left) {
  const from = Math.max(x, left);
  if (x + wide > from) pen.fillRect(from, y, x + wide - from, high);
}

function hatch(pen, strong, soft) {
  const tile = el("canvas", { width: 6, height: 6 }), brush = tile.getContext("2d");
  brush.fillStyle = soft;
  brush.fillRect(0, 0, 6, 6);
  brush.strokeStyle = strong;
  brush.lineWidth = 2;
  for (const shift of [-6, 0, 6]) { brush.beginPath(); brush.moveTo(shift - 1, 7); brush.lineTo(shift + 7, -1); brush.stroke(); }
  return pen.createPattern(tile, "repeat");
}

function axis(pen, width, height, dim, left) {
  pen.fillStyle = dim;
  pen.textAlign = "center";
  const span = lanes.to - lanes.from, places = Math.max(0, Math.ceil(-Math.log10(span / 8)));
  for (const at of ticks(lanes.from, lanes.to, Math.max(3, width / 130))) {
    const x = xOf(at);
    if (x > left + 12 && x < width - 18) pen.fillText(`${at.toFixed(places)} s`, x, 10);
    pen.globalAlpha = 0.18;
    pen.fillRect(x, 18, 1, height);
    pen.globalAlpha = 1;
  }
}

// Rounds, faults with their undo, and hangs, across all lanes.
function marks(pen, width, height, left) {
  const taken = [-Infinity, -Infinity, -Infinity];  // the ends of the texts in three rows
  pen.textAlign = "left";
  for (const mark of marksOf(run.now).sort((a, b) => a.began - b.began)) {
    const from = Math.max(left, xOf(mark.began)), to = Math.min(width, xOf(mark.ended));
    if (to < left || from > width) continue;
    pen.fillStyle = color(mark.color);
    pen.fillRect(from, AXIS, 1.5, mark.ended > mark.began ? marksHeight - 4 : height);
    if (mark.ended > mark.began) pen.fillRect(from, AXIS + marksHeight - 6, to - from, 3);
    const room = pen.measureText(mark.text).width, x = from + room + 9 > width ? Math.max(left, from - 5 - room) : from + 5, row = taken.findIndex((each) => each <= x);
    if (row < 0) continue;
    const shade = pen.fillStyle;
    pen.fillStyle = color("--card");  // no line of another mark goes through the text
    pen.fillRect(x - 2, AXIS + 15 * row, Math.min(room, width - left) + 4, 14);
    pen.fillStyle = shade;
    taken[row] = x + room + 7;
    pen.fillText(mark.text, x, AXIS + 7 + 15 * row, width - left);
  }
}

function marksOf(now) {
  const found = now.rounds.slice(1).map((each) => ({ began: each.began_s, ended: each.began_s, color: "--accent", text: `round ${each.generation + 1}: ${count(each.world_size, "rank")}` }));
  for (const fault of now.faults) {
    found.push({ began: fault.begun_s, rank: fault.rank ?? null, ended: fault.healed_s === null ? Math.max(now.t, fault.begun_s) : fault.healed_s, color: "--warn", text: fault.text });
  }
  const stuck = now.hang ? stallOf(now, now.hang.rank) : null, cause = now.cause, died = cause && !now.hang && cause.rank !== null ? endOfLife(cause.rank) : null;
  if (stuck !== null) found.push({ began: stuck, ended: now.t, rank: now.hang.rank, color: "--bad", text: now.hang.rank === null ? "no rank makes progress" : `all wait for rank ${now.hang.rank}` });
  if (died !== null) found.push({ began: died, ended: died, rank: cause.rank, color: "--bad", text: causeInWords(cause).slice(0, 100) });
  return found.filter((each) => each.began !== null);
}

function rankAt(event) {
  const ranks = ranksOf(run.now), y = event.clientY - lanes.canvas.getBoundingClientRect().top - AXIS - marksHeight;
  return y < 0 ? null : ranks[Math.floor(y / laneHeight(ranks.length))];
}

function describe(span) {
  const name = NAMES[span.kind], what = run.texts[span.text], after = span.step ? `, step ${span.step}` : "";
  const whom = span.kind === KIND.waiting ? ` for rank ${span.late}` : "";
  return `rank ${span.rank} ${name}${whom}: ${seconds(span.lasted)}${after}${what ? `\n${what}` : ""}\nfrom ${span.began.toFixed(4)} s`;
}

function onHover(event) {
  if (!run.now || event.buttons || lanes.following) return;
  lanes.following = true;  // once in a frame, whatever the pointer did meanwhile
  requestAnimationFrame(() => { lanes.following = false; if (lanes.canvas.matches(":hover")) hover(event); });
}

function hover(event) {
  const t = timeAt(event), rank = rankAt(event);
  if (!lanes.pinned) setCursor(t);
  const mark = markAt(event);
  if (mark) { showTip(`${mark.text}\n${mark.began.toFixed(2)} s${mark.ended > mark.began ? ` to ${mark.ended.toFixed(2)} s` : ""}`, event.clientX, event.clientY); return; }
  const span = rank === null || rank === undefined ? null : nearest(rank, t);
  const stall = !span && within(run.now.stalls[rank], t) ? `rank ${rank} ${doing(rank, t).words}` : "";
  showTip(span ? describe(span) : stall, event.clientX, event.clientY);
}

const markAt = (event) => (event.offsetY < AXIS + marksHeight ? marksOf(run.now).find((each) => xOf(each.began) - 4 <= event.offsetX && event.offsetX <= Math.max(xOf(each.ended), xOf(each.began) + 60)) : null);

// The span under the pointer, or one that is too narrow to hit, within three pixels.
function nearest(rank, t) {
  const reach = (3 * (lanes.to - lanes.from)) / lanes.canvas.clientWidth;
  return spanAt(rank, t) || spanAt(rank, t + reach) || spanAt(rank, t - reach);
}

function setCursor(t) {
  lanes.cursor = t;
  if (lanes.width) paintMoment();
  drawCluster();
  drawWhy();
  drawCrosshairs();
  if (lanes.path) draw();
}

function onDown(event) {
  const x = event.clientX, { from, to } = lanes, perPixel = (to - from) / (lanes.canvas.clientWidth - labelWidth());
  let moved = false;
  const move = (each) => { moved = moved || Math.abs(each.clientX - x) > 3; if (moved) show(from - (each.clientX - x) * perPixel, to - (each.clientX - x) * perPixel); };
  lanes.canvas.setPointerCapture(event.pointerId);
  lanes.canvas.addEventListener("pointermove", move);
  lanes.canvas.addEventListener("pointerup", (each) => {
    lanes.canvas.removeEventListener("pointermove", move);
    if (moved) return;
    const mark = markAt(each);
    if (mark) hold(mark.began, mark.rank ?? null);
    else if (lanes.pinned) { release(); setCursor(timeAt(each)); } else hold(timeAt(each), rankAt(each) ?? null);
  }, { once: true });
}

function onWheel(event) {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  zoom(1.0015 ** event.deltaY, timeAt(event));
}

// Show a time: seconds since the start of the run, or a time of day.
function goTo(box) {
  const [hours, ...rest] = box.value.trim().replace(/ ?s$/, "").split(":").map(Number), day = new Date(run.now.timings.started_at * 1000), start = day / 1000;
  const t = rest.length ? day.setHours(hours, rest[0], 0, 0) / 1000 + (rest[1] || 0) - start : hours, { from, to } = extent();
  const within = box.value.trim() !== "" && t >= from && t <= to, wide = Math.min(lanes.to - lanes.from, (to - from) / 8);
  box.setCustomValidity(within ? "" : `The run has no such time: it goes from ${from.toFixed(1)} s to ${to.toFixed(1)} s.`);
  if (!box.reportValidity()) return;
  show(t - wide / 2, t + wide / 2);
  hold(t, null);
}

function hold(t, rank) {
  const changed = lanes.rank !== rank;
  Object.assign(lanes, { pinned: true, rank });
  setCursor(t);
  showLogsAt(t);
  keepPlace({ t: t.toFixed(3), rank });
  if (changed) draw();
}

function jumpTo(span) {
  show(span.began - span.lasted * 0.6, span.began + span.lasted * 1.6);
  hold(span.began + span.lasted / 2, span.rank);
  lanes.canvas.focus({ preventScroll: true });
  lanes.canvas.scrollIntoView({ block: "center" });
}
