// The cluster at one moment: the one under the pointer in the timeline, or the last of the run.

const HELD = { pause: "paused", stop: "stopped", isolate: "isolated", partition: "partitioned" };
const GONE = ["killed", "lost", "absent"];
const MOST_IN_RING = 8, MOST_BOXES = 24, MOST_COLLECTIVES = 4, MOST_NAMED = 6;
const IN_A_RING = /^(all_reduce|all_gather|reduce_scatter|DDP's gradient|horovod)/;  // data go from each rank to the next one

function drawCluster() {
  drawPlayer();
  drawDots();
  const place = document.getElementById("picture");
  if (!place || !run.now) return;
  const now = run.now, t = lanes.cursor, live = t === null;
  document.getElementById("moment").textContent = live ? (now.is_over ? "at the end of the run" : "now") : `at ${t.toFixed(3)} s`;
  const names = now.nodes.length ? now.nodes.map((each) => each.name) : Object.keys(now.phases);
  const isRing = names.length <= (innerWidth < 500 ? 4 : MOST_IN_RING);
  const shown = JSON.stringify([innerWidth < 500, names.map((name) => { const { phase, gone, held } = stateOf(name, t); return [phase, gone, held]; }), ranksOf(now).map((rank) => { const act = doing(rank, t); return [act.kind, act.late, act.what, act.words, Math.round(act.lasted || 0)]; }), now.links, masterAt(t), live && now.is_over]);
  if (place.dataset.shown === shown) return;  // a pointer that moves asks a hundred times a second
  place.dataset.shown = shown;
  place.replaceChildren(isRing ? ringOf(names, t) : gridOf(names, t), sentenceOf(t, isRing ? "" : `${names.length > MOST_BOXES ? "Each square is a node. " : ""}The master: ${masterAt(t)}.`));
}

const faultsAt = (t) => run.now.faults.filter((each) => (t === null ? each.healed_s === null : each.begun_s <= t && (each.healed_s === null || t <= each.healed_s)));

function stateOf(name, t) {
  const now = run.now, faults = faultsAt(t).filter((each) => each.nodes.includes(name));
  const ranks = ranksOf(now).filter((rank) => nodeOf(rank, t) === name);
  if (t === null) {
    const phase = now.phases[name] || "", ok = phase === "exited" && (now.nodes.find((each) => each.name === name) || {}).exit_code === 0;
    const failed = phase === "exited" && !ok && (now.cause && now.cause.node ? now.cause.node === name && !now.hang : !now.ranks.some((each) => each.node === name && (each.stopped || each.exit_code === 0)));
    const stopped = phase === "exited" && !ok && now.ranks.some((each) => each.node === name && each.stopped);
    return { phase: ok ? "finished" : stopped ? "stopped" : phase, gone: GONE.includes(phase) || failed, held: faults.length > 0, faults, ranks };
  }
  const own = Object.values(now.lives).flat().filter(([, , node]) => node === name), here = ranksOf(now).filter((rank) => within((now.lives[rank] || []).filter(([, , node]) => node === name), t));
  const alive = within(own, t), begun = own.some(([began]) => began <= t);
  const fault = faults[faults.length - 1], held = fault && HELD[fault.kind];
  const phase = held || (alive ? "running" : begun ? (fault ? "down" : "ended") : "starting");
  return { phase, gone: begun && !alive && Boolean(fault), held: faults.length > 0, faults, ranks: here };
}

function doing(rank, t) {
  if (t === null) {
    const state = ofMessage(run.now).states.get(rank) || {}, cause = run.now.cause, wait = currentOf(rank);
    if (run.now.hang) return inHang(rank, run.now.hang);
    if (wait) return wait;
    if (cause && cause.rank === rank) return { kind: "bad", words: "failed first" };
    if (run.now.is_over && run.now.straggler && run.now.straggler.rank === rank) return { kind: "bad", words: `held up the others for ${seconds(run.now.straggler.held_up_s)}` };
    const stalled = (run.now.stalls[rank] || []).some(([, ended]) => ended === null);
    const ended = state.exit_code === 0 ? "done" : state.exit_code || state.signal ? "bad" : "idle";
    if (stalled) return { kind: "stalled", words: "makes no progress" };
    const awaiting = ofMessage(run.now).awaited.get(rank);
    if (awaiting) return { kind: "late", words: `awaited by ${awaiting.length > 1 ? count(awaiting.length, "rank") : `rank ${awaiting[0]}`}, ${codeAt(lineNow(rank))}` };
    return { kind: state.stopped ? "idle" : ended, words: state.stopped ? "was stopped" : state.exit_code ? `exit code ${state.exit_code}` : state.signal ? `signal ${state.signal}` : state.phase || "" };
  }
  const span = spanAt(rank, t);
  if (span) return { kind: Object.keys(KIND)[span.kind], words: NAMES[span.kind] + (span.kind === KIND.waiting ? ` for rank ${span.late}` : ""), late: span.late, what: run.texts[span.text] };
  return within(run.now.stalls[rank], t) ? (run.now.hang ? inHang(rank, run.now.hang) : { kind: "stalled", words: "makes no progress" }) : { kind: "idle", words: within(run.now.lives[rank], t) ? codeAt((lineDuring(rank, t, t + 1e-6) || {}).place) : "" };
}

const codeAt = (place) => (place ? `at ${inWords(place)}` : "in other code");

// The collective that a rank of a running run is in now, if any; what kind it is, for how long, and who is waited for.
function currentOf(rank) {
  const known = run.now.current && run.now.current[rank];
  if (!known) return null;
  const [kind, what, began, lasted, late] = known, name = Object.keys(KIND)[kind];
  return { kind: name, began, lasted, late: late[0], all: late, what, words: NAMES[kind] + (late.length ? ` for ${late.length > 1 ? count(late.length, "rank") : `rank ${late[0]}`}` : "") };
}

function ranksInWords(ranks, isFirst = false) {
  const sorted = [...ranks].sort((a, b) => a - b), last = sorted.pop(), r = isFirst ? "R" : "r";
  return sorted.length >= MOST_NAMED ? count(sorted.length + 1, "rank") : sorted.length ? `${r}anks ${sorted.join(", ")} and ${last}` : `${r}ank ${last}`;
}

function inHang(rank, hang) {
  if (rank === hang.rank) return { kind: "stalled", words: "is the cause" };
  const waits = (hang.ranks.find((each) => each.rank === rank) || {}).waits_in;
  return { kind: waits ? "waiting" : "idle", words: waits ? `waits for rank ${hang.rank}` : "makes no progress", late: hang.rank, what: waits };
}

function nodeBox(name, t, x, y, wide) {
  const state = stateOf(name, t), shown = state.ranks.slice(0, 8), chip = (wide - 20) / Math.max(1, shown.length) - (shown.length > 1 ? 3 : 0);
  const single = state.ranks.length === 1 ? doing(state.ranks[0], t).words : "", fault = state.held ? state.faults[0].text : "", most = Math.floor(wide / 6.5);
  const words = fault.startsWith(`${name} `) ? fault.slice(name.length + 1) : single ? `rank ${state.ranks[0]}: ${single}` : state.ranks.length ? `${state.ranks.length > 1 ? "ranks" : "rank"} ${ranges(state.ranks)}` : "";
  return svg("g", { transform: `translate(${x - wide / 2},${y - 32})`, class: live.acts && !run.now.is_over ? "acts" : null, onclick: () => chooseNode(name) },
    svg("rect", { class: `node ${state.gone ? "gone" : state.held ? "held" : ""}`, width: wide, height: 64, rx: 9 }),
    svg("text", { x: 10, y: 18 }, `${state.gone ? "✕ " : state.held ? "! " : ""}${name}`),
    svg("text", { class: "dim", x: wide - 10, y: 18, "text-anchor": "end" }, state.phase),
    shown.map((rank, index) => {
      const act = doing(rank, t);
      return svg("g", {}, svg("rect", { class: `chip f-${act.kind}`, x: 10 + index * (chip + 3), y: 26, width: chip, height: 14, rx: 3 }),
        svg("title", {}, `rank ${rank} ${act.words}`));
    }),
    svg("text", { class: "dim", x: 10, y: 55 }, words.length > most ? `${words.slice(0, most - 1)}…` : words, svg("title", {}, fault || words)));
}

// The nodes around which data of a collective move, from each one to the next.
function nodesInRing(t) {
  return new Set(ranksOf(run.now).filter((rank) => isRingOf(doing(rank, t))).map((rank) => nodeOf(rank, t)));
}

const isRingOf = (act) => act.kind === "moving" && IN_A_RING.test(act.what);

function ringLine(one, other, t, inRing, d) {
  const { shape, cut } = linkBetween(one, other, t), words = cut ? "no connection" : shape, moves = inRing.has(one) && inRing.has(other);
  return { words, line: svg("path", { class: `ring ${cut ? "cut" : shape ? "shaped" : ""} ${moves ? "moves" : ""}`, d }, words ? svg("title", {}, words) : null) };
}

function ringOf(names, t) {
  const narrow = innerWidth < 500, wide = narrow ? 150 : 176, across = narrow ? 340 : names.length <= 4 ? 520 : 700;
  const below = names.length === 3 ? 16 : 44, high = names.length <= 2 ? 76 : names.length <= 4 ? 210 : 380;  // below the master
  const begin = Math.PI * ({ 2: 1, 3: 5 / 6 }[names.length] || 0.75), [out, down] = { 3: [1.06, 1], 4: [1.3, 1.35] }[names.length] || [1, 1];
  const at = names.map((_, index) => {
    const angle = (index / names.length) * 2 * Math.PI - begin, radius = names.length < 2 ? 0 : across / 2 - wide / 2 - 6;
    return [across / 2 + Math.cos(angle) * radius * out, below + high / 2 + Math.sin(angle) * (high / 2 - 36) * down];
  });
  const acts = new Map(ranksOf(run.now).map((rank) => [rank, doing(rank, t)])), inRing = nodesInRing(t);
  const links = names.length < 2 ? [] : names.map((_, index) => {
    if (names.length === 2 && index) return null;
    const other = (index + 1) % names.length, [a, b] = [at[index], at[other]];
    const { line, words } = ringLine(names[index], names[other], t, inRing, `M${a[0]} ${a[1]}L${b[0]} ${b[1]}`);
    return [line, words ? svg("text", { class: "dim over", x: (a[0] + b[0]) / 2, y: (a[1] + b[1]) / 2 - 6, "text-anchor": "middle" }, words) : null];
  });
  const chords = names.flatMap((one, index) => names.slice(index + 2).map((other, more) => {  // links beside the ring, if there is something to say
    const { shape, cut } = linkBetween(one, other, t), [a, b] = [at[index], at[index + 2 + more]];
    if ((index === 0 && index + 2 + more === names.length - 1) || !(cut || shape)) return null;
    return svg("path", { class: `ring chord ${cut ? "cut" : "shaped"}`, d: `M${a[0]} ${a[1]}L${b[0]} ${b[1]}` }, svg("title", {}, cut ? `${one} and ${other}: no connection` : `${one} and ${other}: ${shape}`));
  }));
  const middle = [across / 2, below + high / 2], awaits = waitsToDraw(acts, t).map(([rank, late, share, words]) => {
    const a = at[names.indexOf(nodeOf(rank, t))], b = at[names.indexOf(nodeOf(late, t))];
    const slow = run.now.straggler && run.now.straggler.rank === late;
    return a && b && a !== b ? svg("path", { class: t === null && run.now.is_over && !run.now.hang && !slow ? "awaits total" : "awaits", "stroke-width": 1.5 + 5 * share, "marker-end": "url(#arrow)", d: `M${a[0]} ${a[1]}Q${middle[0]} ${middle[1]} ${borderOf(b, middle, wide)}` }, svg("title", {}, words)) : null;
  });
  const joined = names.map((name, index) => (isJoined(name, t) ? svg("path", { class: "joined", d: `M${across / 2} 28L${at[index][0]} ${at[index][1] - 30}` }) : null));
  return svg("svg", { viewBox: `0 0 ${across} ${below + high}`, role: "img", "aria-label": `${count(names.length, "node")}: ${names.map((each) => `${each} ${stateOf(each, t).phase}`).join(", ")}` },
    hatched(), joined, chords, links, awaits, names.map((name, index) => nodeBox(name, t, at[index][0], at[index][1], wide)),
    svg("g", { transform: `translate(${across / 2 - 84},2)` }, svg("rect", { class: "node", width: 168, height: 26, rx: 9 }), svg("text", { x: 84, y: 17, "text-anchor": "middle" }, "master ", svg("tspan", { class: "dim" }, masterAt(t)))));
}

// Where a line from elsewhere meets the box of a node, with room for the head of an arrow.
function borderOf([x, y], [fromX, fromY], wide) {
  const out = Math.min((wide / 2 + 5) / Math.max(1, Math.abs(fromX - x)), 37 / Math.max(1, Math.abs(fromY - y)));
  return `${x + (fromX - x) * out} ${y + (fromY - y) * out}`;
}

// Who waits for whom at a moment; of a run that is over, who waited for whom in total, with what share of the longest time.
function waitsToDraw(acts, t) {
  if (t !== null || !run.now.is_over || run.now.hang || run.now.cause) return [...acts].filter(([, act]) => act.kind === "waiting").map(([rank, act]) => [rank, act.late, 0.1, `rank ${rank} ${act.words}`]);
  const pairs = [...run.pairs].map(([pair, total]) => [...pair.split(">").map(Number), total]).sort((a, b) => b[2] - a[2]).slice(0, 24), trained = stepLength() * run.steps.size;
  return pairs.map(([rank, late, total]) => [rank, late, Math.min(1, (2 * total) / trained), `rank ${rank} waited ${seconds(total)} for rank ${late}`]).filter(([, , share]) => share > 0.1);
}

const hatched = () => svg("defs", {}, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 10, markerHeight: 10, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { class: "head", d: "M0 0L8 4L0 8z" })), svg("pattern", { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
  svg("rect", { width: 5, height: 5, fill: color("--waiting-soft") }), svg("rect", { width: 2, height: 5, fill: color("--waiting") })));

// What the master does: it lets nodes meet, in rounds.
function masterAt(t) {
  const now = run.now, begun = now.rounds.filter((each) => t === null || each.began_s <= t), last = begun[begun.length - 1];
  if (now.master_ended_s !== null && (t === null || t >= now.master_ended_s)) return "has ended";
  return last ? `round ${last.generation + 1}, ${count(last.world_size, "rank")}` : "waits for nodes";
}

function isJoined(name, t) {
  const lives = Object.values(run.now.lives).flat().filter(([, , node]) => node === name);
  return t === null ? lives.some(([, ended]) => ended === null) : within(lives, t);
}

// The link between two nodes: whether a fault cuts it, and the shape that applies now, which is that for the fewest links.
function linkBetween(one, other, t) {
  const applying = run.now.links.map((text) => {
    const [, scope, shape] = /^(?:(node-[\w,:-]*)=)?(.*)$/.exec(text), groups = scope ? scope.split(":").map((each) => each.split(",")) : [];
    const [first, second = null] = groups, joins = (a, b) => first.includes(a) && (!second || second.includes(b));
    return { shape, breadth: !first ? 3 : second ? 1 : 2, holds: !first || joins(one, other) || joins(other, one) };
  });
  const found = applying.filter((each) => each.holds).sort((a, b) => a.breadth - b.breadth)[0];
  const cut = faultsAt(t).some((each) => (each.kind === "isolate" ? each.nodes.includes(one) || each.nodes.includes(other)
    : each.kind === "partition" && each.nodes.includes(one) && each.nodes.includes(other) && sideOf(each, one) !== sideOf(each, other)));
  return { cut, shape: found && found.shape !== "plain" ? found.shape : "" };
}

// The sides of a partition are in its text: "node-0, node-1 and node-2 cannot reach each other".
const sideOf = (fault, name) => fault.text.split(/ and | cannot /).findIndex((side) => side.split(", ").includes(name));

function gridOf(names, t) {
  const label = { role: "img", "aria-label": count(names.length, "node") };
  if (names.length <= MOST_BOXES) {
    const across = innerWidth < 500 ? 2 : 4, wide = 170, inRing = nodesInRing(t);
    const at = names.map((_, index) => [14 + (index % across) * (wide + 22) + wide / 2, Math.floor(index / across) * 84 + 36]);
    const links = names.map((name, index) => {  // to the next node: beside it, or below, between the rows; from the last one back to the first
      const next = (index + 1) % names.length, [[x, y], [toX, toY]] = [at[index], at[next]];
      const d = !next ? `M${x} ${y}v42H4V${toY}H${toX}` : y === toY ? `M${x} ${y}H${toX}` : `M${x} ${y}v42H${toX}V${toY}`;
      return ringLine(name, names[next], t, inRing, d).line;
    });
    return svg("svg", { viewBox: `0 0 ${across * (wide + 22)} ${Math.ceil(names.length / across) * 84}`, ...label }, hatched(), links,
      names.map((name, index) => nodeBox(name, t, ...at[index], wide)));
  }
  const columns = Math.ceil(Math.sqrt(names.length * 3)), size = Math.max(10, Math.floor(760 / columns) - 3);
  return svg("svg", { viewBox: `0 0 760 ${Math.ceil(names.length / columns) * (size + 3)}`, ...label }, hatched(),
    names.map((name, index) => {
      const state = stateOf(name, t), act = state.ranks.length ? doing(state.ranks[0], t) : { kind: "idle", words: "" };
      return svg("g", {}, svg("rect", { class: state.gone ? "node gone" : `chip f-${act.kind}`, x: (index % columns) * (size + 3), y: Math.floor(index / columns) * (size + 3), width: size, height: size, rx: 2 }),
        svg("title", {}, `${name} ${state.phase} ${act.words}`));
    }));
}

// Which ranks are in which collective, those that wait longest first.
function collectivesAt(t) {
  const found = new Map();
  for (const rank of ranksOf(run.now)) {
    const act = doing(rank, t), all = act.all || (act.late === undefined || act.late === null ? [] : [act.late]);
    if (!["waiting", "moving", "collective"].includes(act.kind)) continue;
    const same = listIn(found, [act.kind, act.what, all].join());
    same.push({ ...act, all, rank });
  }
  return [...found.values()].map((same) => ({ ...same[0], ranks: same.map((each) => each.rank), lasted: Math.max(...same.map((each) => each.lasted || 0)) })).sort((a, b) => b.lasted - a.lasted);
}

function sentenceOf(t, first) {
  const now = run.now, parts = [first];
  for (const each of collectivesAt(t).slice(0, MOST_COLLECTIVES)) {
    const long = each.lasted >= 0.1 ? `, for ${seconds(each.lasted)}` : "", one = each.ranks.length === 1, who = ranksInWords(each.ranks, true), what = each.what || "a collective";
    parts.push(each.kind === "waiting" ? `${who} ${one ? "waits" : "wait"} for ${ranksInWords(each.all)} in ${what}${long}.` : `${who} ${one ? "is" : "are"} in ${what}${isRingOf(each) ? ": data move around the ring" : each.kind === "moving" ? ": data move" : ""}.`);
  }
  if (now.links.length) parts.push(`Links: ${now.links.join("; ")}.`);
  if (t === null && now.is_over && run.pairs.size && !now.hang && !now.cause) parts.push(inTotal());
  return el("p", { class: "small dim", id: "moment-words" }, linked(parts.join(" ")));
}

// Of a run that is over: how long ranks waited, and for whom.
function inTotal() {
  const [first] = awaitedInTotal(), all = [...run.pairs.values()].reduce((sum, each) => sum + each, 0);
  return `${run.now.nodes.length > MOST_IN_RING ? "All together" : "Arrows are waits in total"}: ranks waited ${seconds(all)}${first[1] > all / 2 ? `, of which ${percent(first[1] / all)} for rank ${first[0]}` : ""}.`;
}

// [rank, seconds for which others waited for it], the most awaited first.
function awaitedInTotal() {
  const found = new Map();
  for (const [pair, total] of run.pairs) { const late = Number(pair.split(">")[1]); found.set(late, (found.get(late) || 0) + total); }
  return [...found].sort((a, b) => b[1] - a[1]);
}
