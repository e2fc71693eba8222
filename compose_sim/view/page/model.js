// What the page knows of the run: messages from composesim, appended (compose_sim/core/view/page.py makes them).

const blank = () => ({ now: null, spans: new Map(), lines: new Map(), texts: [""], usage: new Map(), metrics: new Map(), logs: [], waits: new Map(), pairs: new Map(), steps: new Map(), sources: new Map(), ordered: null });
const run = blank();
const KIND = { data: 0, forward: 1, backward: 2, optimizer: 3, checkpoint: 4, waiting: 5, moving: 6, collective: 7 };

function forget() { Object.assign(run, blank()); tracebacks.clear(); }

function listIn(map, key) {
  if (!map.has(key)) map.set(key, []);
  return map.get(key);
}

// Take a message. Spans of a rank are sorted by time, in two rows: what it computes, and the collectives that it is in.
function take(message) {
  if (message.earlier) { run.logs = leveled(message.earlier, new Set()).concat(run.logs); filterLogs(); return; }
  if (message.is_whole) forget();
  run.now = message.now;
  if (run.now.hang) run.now.straggler = null;  // who stops everybody is not who is slow
  for (const text of message.texts) run.texts.push(text);  // spread, too many would be too many arguments
  const touched = new Set();
  for (const [rank, kind, began, lasted, step, text, late] of message.spans) {
    const span = { rank, kind, began: began / 1e6, lasted: lasted / 1e6, step, text, late };
    const key = `${rank}/${kind < KIND.waiting ? 0 : 1}`;
    listIn(run.spans, key).push(span);
    touched.add(key);
    countStep(span);
    if (kind === KIND.waiting) countWait(span);
  }
  for (const [rank, text, began, lasted] of message.lines) {
    const [, file, line] = PLACE.exec(run.texts[text]) || [];
    if (file) listIn(run.lines, rank).push({ began: began / 1e6, lasted: lasted / 1e6, place: [file, Number(line)], text });
  }
  for (const key of touched) run.spans.get(key).sort((a, b) => a.began - b.began);
  if (touched.size) run.ordered = null;
  for (const [node, ...values] of message.usage) listIn(run.usage, node).push(values);
  for (const [name, rank, step, value] of message.metrics) {
    if (!run.metrics.has(name)) run.metrics.set(name, new Map());
    listIn(run.metrics.get(name), rank).push([step, value]);
  }
  for (const line of leveled(message.logs, tracebacks)) run.logs.push(line);
  for (const [file, first, lines] of message.sources || []) run.sources.set(shortPath(file), { first, lines });
}

const roundOf = (t) => run.now.rounds.filter((each) => each.began_s <= t).length;

// A step in one round: when it began and ended, and for each rank how long it waited for others in it, and what it did.
function countStep(span) {
  const key = roundOf(span.began) * 1e9 + span.step;
  let step = run.steps.get(key);
  if (!step) run.steps.set(key, (step = { key, step: span.step, began: Infinity, ended: 0, waited: new Map(), did: new Map() }));
  step.began = Math.min(step.began, span.began);
  step.ended = Math.max(step.ended, span.began + span.lasted);
  step.waited.set(span.rank, (step.waited.get(span.rank) || 0) + (span.kind === KIND.waiting ? span.lasted : 0));
  if (span.late !== null && !step.waited.has(span.late)) step.waited.set(span.late, 0);  // it may never reach the collective
  if (!step.did.has(span.rank)) step.did.set(span.rank, new Float64Array(8));
  step.did.get(span.rank)[span.kind] += span.lasted;
  delete step.median;
}

const stepsInOrder = () => (run.ordered = run.ordered || [...run.steps.values()].sort((a, b) => a.key - b.key));

// By how many seconds a rank was later than the median rank in a step: the others waited for it, and it did not.
function lateness(step, rank) {
  if (step.median === undefined) {
    const waits = [...step.waited.values()].sort((a, b) => a - b);
    Object.assign(step, { median: waits[waits.length >> 1], worst: waits[waits.length >> 1] - waits[0] });
  }
  return step.waited.has(rank) ? Math.max(0, step.median - step.waited.get(rank)) : 0;
}

// All waits of one collective for one rank; `cost` is how long the last but one rank waited: what the others lost by it.
function countWait(span) {
  const key = `${roundOf(span.began)}/${span.step}/${span.text}/${span.late}`, ended = span.began + span.lasted, pair = `${span.rank}>${span.late}`;
  const wait = run.waits.get(key) || { ...span, ranks: 0, total: 0, cost: Infinity, ended };
  if (span.lasted > wait.lasted) Object.assign(wait, { rank: span.rank, began: span.began, lasted: span.lasted });
  run.waits.set(key, Object.assign(wait, { ranks: wait.ranks + 1, total: wait.total + span.lasted, cost: Math.min(wait.cost, span.lasted), ended: Math.max(wait.ended, ended) }));
  run.pairs.set(pair, (run.pairs.get(pair) || 0) + span.lasted);
}

const tracebacks = new Set();  // ranks whose last line is part of one

// Lines with their level: 2 for errors and all of a traceback, 1 for warnings.
function leveled(lines, open) {
  return lines.map(([rank, line, t]) => {
    const text = (line.includes("\x1b") ? plain(line) : line).replace(/^\[rank\d+\]: ?/, ""), begins = text.startsWith("Traceback (");
    const level = open.has(rank) || LEVEL.error.test(text) ? 2 : LEVEL.warning.test(text) ? 1 : 0;
    if (begins) open.add(rank); else if (!/^\s/.test(text)) open.delete(rank);
    return [rank, line, t, level];
  });
}

// What is computed once per message: with 1,000 nodes, drawing the cluster asks for it a million times.
const ONCE = new WeakMap();

function ofMessage(now) {
  if (!ONCE.has(now)) {
    const places = new Map();
    for (const node of now.nodes) for (const rank of node.ranks) if (!places.has(rank)) places.set(rank, node.name);
    for (const each of now.ranks) places.set(each.rank, each.node);
    const known = new Set([...now.ranks.map((each) => each.rank), ...Object.keys(now.lives).map(Number)]);
    const awaited = new Map();  // rank -> who waits for it now
    for (const [rank, [, , , , late]] of Object.entries(now.current || {})) for (const each of late) listIn(awaited, each).push(Number(rank));
    ONCE.set(now, { places, awaited, ranks: [...known].sort((a, b) => a - b), states: new Map(now.ranks.map((each) => [each.rank, each])) });
  }
  return ONCE.get(now);
}

function ranksOf(now) { return ofMessage(now).ranks; }

// A rank may be on another node in each round; without a time, it is where it was last.
function nodeOf(rank, t = null) {
  const life = t === null ? null : (run.now.lives[rank] || []).filter(([began]) => began <= t).pop();
  if (life) return life[2];
  return ofMessage(run.now).places.get(rank) ?? "";
}

// The end of the time axis: a run that is over ends with its last event, and not when nodes have been removed.
function endOfRun() {
  const last = Math.max(0.1, run.now.t, ...[...run.spans.values()].map((each) => each[each.length - 1]).map((s) => s.began + s.lasted));
  return last;
}

// The index of the first span that ends after a time.
function firstAfter(spans, t) {
  let low = 0, high = spans.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle].began + spans[middle].lasted < t) low = middle + 1;
    else high = middle;
  }
  return low;
}

// What a rank does at a time: being in a collective comes before computing.
function spanAt(rank, t) {
  for (const row of [1, 0]) {
    const spans = run.spans.get(`${rank}/${row}`) || [];
    const span = spans[firstAfter(spans, t)];
    if (span && span.began <= t) return span;
  }
  return null;
}

const PLACE = /\(([^()]+\.py), line (\d+)\)/;

// The line of the script at which samples found a rank for most of the time between two moments, and for how long.
function lineDuring(rank, from, to) {
  const lines = run.lines.get(rank) || [], times = new Map();
  for (let at = firstAfter(lines, from); at < lines.length && lines[at].began < to; at += 1) {
    const each = lines[at], known = times.get(each.text) || { place: each.place, lasted: 0 };
    times.set(each.text, { ...known, lasted: known.lasted + Math.min(to, each.began + each.lasted) - Math.max(from, each.began) });
  }
  return [...times.values()].reduce((best, each) => (!best || each.lasted > best.lasted ? each : best), null);
}

// Where a rank that waits for no other is now.
function lineNow(rank) {
  const [, file, line] = /^(.+):(\d+)$/.exec((run.now.at || {})[rank] || "") || [];
  return file ? [file, Number(line)] : null;
}

const inWords = (place) => `${shortPath(place[0]).split("/").pop()}, line ${place[1]}`;

// The collective for which ranks of a running run wait so long that it is no longer ordinary, if there is one.
function openWait() {
  const known = ofMessage(run.now);
  if (known.open === undefined) known.open = findOpenWait(run.now);
  return known.open;
}

function findOpenWait(now) {
  if (now.is_over || now.hang || !now.current) return null;
  const lasted = stepsInOrder().slice(-50).map((each) => each.ended - each.began).sort((a, b) => a - b), usual = lasted[lasted.length >> 1] || 0;
  return collectivesAt(null).find((each) => each.kind === "waiting" && each.all.length && each.lasted > Math.max(1, 5 * usual)) || null;
}

function within(periods, t) {
  return (periods || []).some(([began, ended]) => began <= t && (ended === null || t <= ended));
}
