// Steps × ranks: how late each rank was in each step. It is the overview of the lanes below, and a brush for them; and the critical path.

const heat = { canvas: null, from: 0, to: 0 };

function heatCanvas() {
  const canvas = heat.canvas = el("canvas", { id: "heat", role: "img", "aria-label": "How late each rank was in each step" });
  let begun = null;
  const stepAt = (event) => { const steps = stepsInOrder(), x = event.offsetX - labelWidth(); return x < 0 ? null : steps[Math.min(steps.length - 1, Math.floor((x / (canvas.clientWidth - labelWidth())) * steps.length))]; };
  canvas.addEventListener("pointerdown", (event) => { begun = stepAt(event); if (begun) canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    const step = stepAt(event), rank = ranksOf(run.now)[Math.floor(event.offsetY / heatRow())];
    if (!step) { showTip(""); return; }
    if (begun && begun !== step) show(Math.min(begun.began, step.began), Math.max(begun.ended, step.ended));
    showTip(`step ${step.step}, rank ${rank}: ${seconds(lateness(step, rank))} later than the median rank\nthe step took ${seconds(step.ended - step.began)}`, event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerup", (event) => {
    const step = stepAt(event);
    if (begun && step === begun) { showAround((step.began + step.ended) / 2, step.ended - step.began); hold((step.began + step.ended) / 2, ranksOf(run.now)[Math.floor(event.offsetY / heatRow())] ?? null); }
    begun = null;
  });
  canvas.addEventListener("pointerleave", () => showTip(""));
  return canvas;
}

const heatRow = () => Math.max(3, Math.min(10, Math.floor(128 / Math.max(1, ranksOf(run.now).length))));

function paintHeat(width) {
  const { canvas } = heat, steps = stepsInOrder(), ranks = ranksOf(run.now), row = heatRow(), scale = devicePixelRatio || 1, left = labelWidth();
  canvas.hidden = steps.length < 3 || ranks.length < 2;
  if (canvas.hidden) return;
  const height = ranks.length * row + 14, seen = steps.filter((each) => each.ended >= lanes.from && each.began <= lanes.to);
  const shown = JSON.stringify([width, ranks.length, steps.length, run.waits.size, seen.length && seen[0].key, seen.length, color("--card")]);
  if (canvas.dataset.shown === shown) return;
  canvas.dataset.shown = shown;
  canvas.style.height = `${height}px`;
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  const pen = canvas.getContext("2d"), wide = (width - left) / steps.length;
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.font = "11px system-ui, sans-serif";
  const full = noticeable();
  const shades = [color("--lane"), color("--late-1"), color("--late-2"), color("--late-3"), color("--bad")], columns = Math.min(steps.length, Math.floor(width - left));
  for (let column = 0; column < columns; column += 1) {
    const first = Math.floor((column * steps.length) / columns), last = Math.max(first + 1, Math.floor(((column + 1) * steps.length) / columns)), x = left + first * wide;
    ranks.forEach((rank, index) => {
      let late = 0;
      for (let at = first; at < last; at += 1) {
        const own = lateness(steps[at], rank);
        if (own > steps[at].worst / 4) late = Math.max(late, own);  // beside a rank that hangs, a tenth of a second is nothing
      }
      pen.fillStyle = shades[late < full / 6 ? 0 : Math.min(4, 1 + Math.floor((3.999 * late) / full))];
      pen.fillRect(x, index * row, Math.max(1, wide * (last - first) - (wide > 4 ? 1 : 0)), row - (row > 4 ? 1 : 0));
    });
  }
  pen.fillStyle = color("--dim");
  pen.fillText(width < 500 ? "steps" : "late, by step", 2, Math.min(height - 4, (ranks.length * row) / 2 + 4));
  pen.textAlign = "center";
  for (const at of ticks(0, steps.length - 1, Math.max(2, width / 140), 1)) {
    const name = stepName(steps[Math.round(at)], width < 500), half = pen.measureText(name).width / 2;
    pen.fillText(name, Math.max(left + half, Math.min(width - half, left + (at + 0.5) * wide)), height - 2);
  }
  if (seen.length && seen.length < steps.length) {
    pen.strokeStyle = color("--accent");
    pen.lineWidth = 2;
    pen.strokeRect(left + steps.indexOf(seen[0]) * wide + 0.5, 1, Math.max(3, seen.length * wide - 1), ranks.length * row - 1);
  }
}

// Steps are counted anew in each round.
function stepName({ key, step }, isShort) {
  const round = run.now.rounds.length > 1 ? Math.floor(key / 1e9) : 0;
  return isShort ? `${round ? `${round}:` : ""}${step}` : `${round ? `round ${round}, ` : ""}step ${step}`;
}

// From how many seconds on a rank is late: half of an ordinary step; less than a tenth of a second is noise of a shared machine.
function noticeable() {
  const lasted = stepsInOrder().map((each) => each.ended - each.began).sort((a, b) => a - b);
  return Math.max(0.1, (lasted[lasted.length >> 1] || 0) / 2);
}

// A rank for which others wait may itself wait, or be held, meanwhile: for whom, and how long.
function ownWait(rank, began, ended) {
  const spans = run.spans.get(`${rank}/1`) || [];
  let lasted = 0, late = null;
  for (let at = firstAfter(spans, began); at < spans.length && spans[at].began < ended; at += 1) {
    if (spans[at].kind !== KIND.waiting) continue;
    lasted += Math.min(ended, spans[at].began + spans[at].lasted) - Math.max(began, spans[at].began);
    late = spans[at].late;
  }
  return { lasted, late };
}

// The step at a moment; without one, the longest after the first.
function stepAtMoment() {
  const steps = stepsInOrder();
  if (lanes.cursor === null && run.now.cause && !run.now.hang) return null;  // what failed was no matter of time
  if (lanes.cursor !== null) return steps.find((each) => each.began <= lanes.cursor && lanes.cursor <= each.ended) || null;
  return steps.slice(steps.length > 1 ? 1 : 0).reduce((best, each) => (!best || each.ended - each.began > best.ended - best.began ? each : best), null);
}

// Why a step took so long: from its end back along the waits, from rank to rank.
function pathOf(step) {
  let t = step.ended, rank = [...step.did.keys()].reduce((best, each) => (lastEnd(each, step) > lastEnd(best, step) ? each : best));
  const path = [];
  for (let hops = 0; hops < 200 && t > step.began; hops += 1) {
    const spans = run.spans.get(`${rank}/1`) || [], end = firstAfter(spans, t);
    let wait = null;
    for (let at = Math.min(end, spans.length - 1); at >= 0 && spans[at].began + spans[at].lasted > step.began; at -= 1) {
      if (spans[at].kind === KIND.waiting && spans[at].began < t && spans[at].late !== rank && spans[at].began + spans[at].lasted <= t + 1e-4) { wait = spans[at]; break; }
    }
    const from = Math.max(step.began, wait ? wait.began + wait.lasted : step.began);
    path.unshift({ rank, from, to: t, waited: path.length ? path[0].arrived : null });
    if (!wait) break;
    path[0].arrived = wait;
    rank = wait.late;
    t = Math.min(t, from);
  }
  return path.filter((each) => each.to - each.from > 1e-6);
}

const lastEnd = (rank, step) => Math.max(0, ...[0, 1].map((row) => { const spans = run.spans.get(`${rank}/${row}`) || []; const at = spans.findLastIndex((each) => each.began < step.ended); return at < 0 ? 0 : spans[at].began + spans[at].lasted; }));

// What a rank did in a part of the path: seconds by kind; the rest is other code.
function partsOf({ rank, from, to }) {
  const parts = new Map();
  let known = 0;
  for (const row of [0, 1]) {
    for (const span of run.spans.get(`${rank}/${row}`) || []) {
      const overlap = Math.min(to, span.began + span.lasted) - Math.max(from, span.began);
      if (overlap > 0) { parts.set(NAMES[span.kind], (parts.get(NAMES[span.kind]) || 0) + overlap); known += overlap; }
    }
  }
  const line = lineDuring(rank, from, to);
  if (to - from - known > 1e-4) parts.set(line && line.lasted > (to - from - known) / 2 ? `at ${inWords(line.place)}:` : "other code", to - from - known);
  return [...parts].sort((a, b) => b[1] - a[1]);
}

function togglePath() { lanes.path = !lanes.path; drawWhy(); draw(); }

function drawWhy() {
  const place = document.getElementById("why"), step = stepAtMoment();
  if (!place) return;
  place.hidden = !step;
  if (!step || place.dataset.step === `${step.key}/${lanes.path}/${run.waits.size}`) return;
  place.dataset.step = `${step.key}/${lanes.path}/${run.waits.size}`;
  const path = pathOf(step), longest = [...path].sort((a, b) => (b.to - b.from) - (a.to - a.from)).slice(0, 4);
  place.replaceChildren();
  fill(place, {}, [el("b", {}, `Step ${step.step} took ${seconds(step.ended - step.began)}: `), longest.map((each, index) => [index ? ", " : "", el("b", {}, seconds(each.to - each.from)), linked(` rank ${each.rank} (${partsOf(each).slice(0, 2).map(([name, t]) => `${name} ${seconds(t)}`).join(", ")})`)]), ". ",
    el("button", { class: "text", "aria-pressed": Boolean(lanes.path), onclick: () => { if (!lanes.path) showAround((step.began + step.ended) / 2, step.ended - step.began); togglePath(); } }, lanes.path ? "Hide its critical path" : "Show its critical path")]);
}

// Across the lanes, the line along which the step could not have been shorter.
function paintPath(pen, ranks, high, top) {
  const step = lanes.path && stepAtMoment();
  if (!step) return;
  pen.strokeStyle = color("--ink");
  pen.lineWidth = 3;
  pen.beginPath();
  for (const { rank, from, to } of pathOf(step)) {
    const y = top + ranks.indexOf(rank) * high + high / 2 - 3, left = labelWidth();
    if (to > lanes.from) { pen.lineTo(Math.max(left, xOf(from)), y); pen.lineTo(Math.max(left, xOf(to)), y); }
  }
  pen.stroke();
}

// Whose code all waited for: by rank and place, what the waits cost the others.
function blamed() {
  const found = new Map();
  for (const wait of run.waits.values()) {
    const from = wait.ended - wait.cost, own = lineDuring(wait.late, from, wait.ended), place = own && own.lasted > wait.cost / 2 ? own.place : null, met = PLACE.exec(run.texts[wait.text]);
    const key = `${wait.late}/${place || (met ? met[0] : run.texts[wait.text])}`, known = found.get(key) || { late: wait.late, text: wait.text, place, cost: 0, count: 0 };
    const waited = wait.cost > 0.01 ? ownWait(wait.late, from, wait.ended).lasted : 0;
    found.set(key, { ...known, cost: known.cost + Math.max(0, wait.cost - waited), count: known.count + 1 });
  }
  return [...found.values()].sort((a, b) => b.cost - a.cost);
}
