// What the page knows of the run: messages from composesim, appended (compose_sim/core/view/page.py makes them).

const run = { now: null, spans: new Map(), texts: [""], usage: new Map(), metrics: new Map(), logs: [], waits: [] };
const KIND = { data: 0, forward: 1, backward: 2, optimizer: 3, checkpoint: 4, waiting: 5, moving: 6, collective: 7 };
const MOST_WAITS = 6;

function listIn(map, key) {
  if (!map.has(key)) map.set(key, []);
  return map.get(key);
}

// Take a message. Spans of a rank are sorted by time, in two rows: what it computes, and the collectives that it is in.
function take(message) {
  run.now = message.now;
  for (const text of message.texts) run.texts.push(text);  // spread, too many would be too many arguments
  const touched = new Set();
  for (const [rank, kind, began, lasted, step, text, late] of message.spans) {
    const span = { rank, kind, began: began / 1e6, lasted: lasted / 1e6, step, text, late };
    const key = `${rank}/${kind < KIND.waiting ? 0 : 1}`;
    listIn(run.spans, key).push(span);
    touched.add(key);
    if (kind === KIND.waiting) run.waits.push(span);
  }
  for (const key of touched) run.spans.get(key).sort((a, b) => a.began - b.began);
  run.waits = run.waits.sort((a, b) => b.lasted - a.lasted).slice(0, MOST_WAITS);
  for (const [node, ...values] of message.usage) listIn(run.usage, node).push(values);
  for (const [name, rank, step, value] of message.metrics) {
    if (!run.metrics.has(name)) run.metrics.set(name, new Map());
    listIn(run.metrics.get(name), rank).push([step, value]);
  }
  for (const line of message.logs) run.logs.push(line);
}

function forget() {
  Object.assign(run, { now: null, spans: new Map(), texts: [""], usage: new Map(), metrics: new Map(), logs: [], waits: [] });
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

function within(periods, t) {
  return (periods || []).some(([began, ended]) => began <= t && (ended === null || t <= ended));
}
