// Overview, hang, checks, metrics and samples.

const MARK = { passed: "✔", failed: "✘", warned: "!", "not-applicable": "–" };
const VERDICTS = { passed: ["good", "✔ passed"], failed: ["bad", "✘ failed"], running: ["", "● running"], inconclusive: ["warn", "? inconclusive"] };

function verdictPill(now) {
  const failed = now.checks.filter((each) => each.status === "failed" && !each.follows).map((each) => each.id).join(", ");
  if (now.hang && !now.is_over) return el("span", { class: "pill bad" }, "● makes no progress");
  const wait = openWait();
  if (wait) return el("span", { class: "pill warn" }, `● waiting ${Math.round(wait.lasted)} s for ${ranksInWords(wait.all)}`);
  if (now.verdict === "passed" && failed) return el("span", { class: "pill warn" }, `! passed, but ${failed} failed`);  // of `up`
  const [kind, words] = VERDICTS[now.verdict] || ["bad", `✘ ${now.verdict}`];
  return el("span", { class: `pill ${kind}` }, words);
}

function headOf(now) {
  const nodes = now.nodes.length || Object.keys(now.phases).length;
  const facts = [now.program, `${count(nodes, "node")}, ${count(now.ranks.length || now.world_size, "rank")}`, now.engine === "local" ? "plain processes" : [now.engine, now.image && `image ${now.image}`].filter(Boolean).join(", "), now.backend,
    now.versions.torch && `torch ${now.versions.torch}${["older", "newer"].includes(now.torch_range) ? ` (${now.torch_range} than the tested range)` : ""}`, now.timings.started_at && new Date(now.timings.started_at * 1000).toLocaleString()];
  return [el("span", { class: "facts" }, facts.filter(Boolean).join(" · ")), el("span", { class: "dim small", id: "age" }), el("span", { class: "brand" }, runList() || "composesim")];
}

function overviewSection(now) {
  const metrics = metricNames(now), steps = Math.max(0, ...now.nodes.map((each) => each.steps)), first = now.timings.first_step_s, wait = waitingShare(now), rate = stepRate(now, steps, first);
  const tiles = [
    [now.is_over ? "took" : "running for", seconds(now.is_over ? now.timings.total_s : now.t), now.timings.output_s ? `, and ${seconds(now.timings.output_s)} more to show the output` : ""],
    steps ? ["optimizer steps", steps] : null, rate,
    ...metrics.slice(0, 3).map((name) => [name, number(now.metrics[name])]),
    wait && ["waiting", percent(wait.share), wait.worst, "#shares"],
    now.restarts ? [now.restarts === 1 ? "restart" : "restarts", now.restarts] : null,
    now.faults.length ? [now.faults.length === 1 ? "fault injected" : "faults injected", now.faults.length] : null,
  ].filter(Boolean);
  return el("section", { id: "overview" }, verdictCard(now),
    el("div", { class: "tiles" }, tiles.map(([name, value, more, link]) => el(link ? "a" : "div", { class: "tile", href: link }, el("b", {}, String(value)), el("span", {}, name + (more || ""))))),
    nodesLine(now), historyCard(now), now.cause || now.hang ? null : now.is_over ? typeNext(...(now.straggler ? [] : [`composesim trace ${now.run}`]), `composesim report --run ${now.run} --html ${now.run}.html`) : typeNext(`composesim logs --run ${now.run} --follow`));
}

// Metrics have at least two values, loss and accuracy come first.
function metricNames(now) {
  const place = (name) => ["loss", "acc"].findIndex((each) => name.toLowerCase().includes(each)) >>> 0;
  return Object.keys(now.metrics).filter((name) => typeof now.metrics[name] === "number" && !["step", "epoch", "rank"].includes(name) && [...(run.metrics.get(name) || new Map()).values()].some((points) => points.length > 1))
    .sort((a, b) => place(a) - place(b));
}

// Of a running run, in the last ten seconds; 0 if there was no step.
function stepRate(now, steps, first) {
  if (!steps || first === null || now.rounds.length > 1 || (now.hang && now.is_over)) return null;
  const all = stepsInOrder(), last = all[all.length - 1], done = all.filter((each) => each.ended > now.t - 10).length, ago = last ? now.t - last.ended : 0;
  if (now.is_over || !last || all.length < 2) { const trained = (last ? last.ended : now.t) - first; return trained > 0.2 && steps > 1 ? ["steps per second", number(Number(((steps - 1) / trained).toPrecision(3)))] : null; }  // it began with the end of the first
  return ["steps per second", number(Number((done / Math.min(10, Math.max(0.5, now.t - first))).toPrecision(2))), ago > 2 ? `, last step ${Math.round(ago)} s ago` : ""];
}

function waitingShare(now) {
  const all = Object.values(now.shares), open = openWait(), more = open ? open.lasted * open.ranks.length : 0, waited = more + all.reduce((sum, each) => sum + (each.waiting || 0), 0);
  const total = more + all.reduce((sum, each) => sum + Object.entries(each).reduce((part, [name, value]) => part + (name === "caused" ? 0 : value), 0), 0), [first] = awaitedInTotal();
  const sum = [...run.pairs.values()].reduce((part, each) => part + each, 0);
  return all.length > 1 && total > Math.max(0.5 * all.length, endOfRun() / 20) ? { share: waited / total, worst: first && first[1] > sum / 2 ? `, ${percent(first[1] / sum)} for rank ${first[0]}` : "" } : null;
}

const typeNext = (...commands) => el("p", { class: "small dim next" }, "Type next: ", commands.map((each, index) => [index ? " or " : "", typed(each)]));

// All nodes in a line, if they do the same; else what differs.
function nodesLine(now) {
  if (!now.nodes.length) return null;
  const groups = new Map();
  for (const each of now.nodes) listIn(groups, `${stateOfNode(now, each).words}, ${count(each.steps, "step")}`).push(each.name.replace("node-", ""));
  const sorted = [...groups].sort((a, b) => a[1].length - b[1].length), most = Math.max(0, ...now.nodes.map((each) => each.peak_memory_bytes || 0));
  return el("p", { class: "small", id: "nodes" }, sorted.slice(0, 6).map(([words, names], index) => [index ? "; " : "", el("b", {}, names.length === now.nodes.length ? count(names.length, "node") : `${names.length > 1 ? "nodes" : "node"} ${ranges(names.map(Number))}`), `: ${words}`]), sorted.length > 6 ? `; and ${sorted.length - 6} more states` : "", most ? `; memory up to ${bytes(most)}` : "");
}

// In words; the exit code of ranks that composesim stopped means nothing.
function stateOfNode(now, node) {
  const phase = now.phases[node.name] || "", own = now.ranks.filter((each) => each.node === node.name), stopped = own.length > 0 && own.every((each) => each.stopped);
  if (phase !== "exited") return { words: phase, title: "" };
  if (stopped && node.exit_code !== 0) return { words: "stopped by composesim", title: `exit code ${node.exit_code}` };
  return { words: node.exit_code === 0 ? "finished" : `failed with exit code ${node.exit_code}`, title: "", failed: node.exit_code !== 0 };
}

function historyCard(now) {
  const rows = [
    ...now.faults.map((each) => ["fault", each.begun_s, each.text, [each.healed_s !== null ? `healed at ${seconds(each.healed_s)}` : "not healed", each.recovered_s !== null ? `training went on after ${seconds(each.recovered_s)}` : "", each.steps_lost ? `${count(each.steps_lost, "step")} repeated` : ""]]),
    ...now.rounds.slice(1).map((each) => ["round", each.began_s, `round ${each.generation + 1} with ${count(each.world_size, "rank")}`, [each.nodes.join(", ")]]),
  ].sort((a, b) => a[1] - b[1]);
  const notes = [...now.notes, ...now.hints.map((each) => `Note: ${each.place.file}, line ${each.place.line}: ${each.text}`), now.bottleneck && now.is_over && !now.cause ? `Most likely limited by ${now.bottleneck.what}: ${now.bottleneck.why}` : ""].filter(Boolean);
  if (!rows.length && !notes.length) return null;
  return el("div", { class: "card" }, rows.length ? el("table", { class: "history" }, el("tbody", {}, rows.map(([kind, t, what, more]) =>
    el("tr", {}, el("td", { class: "dim" }, kind), el("td", { class: "n" }, t === null ? "" : el("button", { class: "text", onclick: () => { visit(t, null); toTimeline(); } }, `${t.toFixed(1)} s`)), el("td", {}, what, el("span", { class: "dim" }, ` · ${more.filter(Boolean).join(", ")}`)))))) : null,
    notes.map((note) => el("p", { class: "small" }, linked(note))));
}

// One row per rank: what it does, and where its time went. Of many, those that differ; the others on demand.
function drawShares(now) {
  const shares = document.getElementById("shares"), open = openWait(), kinds = Object.keys(KIND), times = new Map(now.rank_times.map((each) => [each.rank, each]));
  const ranks = ranksOf(now), score = (rank) => (times.get(rank) || {}).straggler_score || 0, most = Math.max(1e-9, ...ranks.map((rank) => total(now.shares[rank] || {})));
  drawWaits(now, open);
  const states = new Map(ranks.map((rank) => [rank, now.ranks.find((each) => each.rank === rank)]));
  const isOdd = (rank) => (now.cause && now.cause.rank === rank) || (now.hang && now.hang.rank === rank) || (open && open.all.includes(rank)) || (!open && now.straggler && now.straggler.rank === rank);
  const sorted = [...ranks].sort((a, b) => isOdd(b) - isOdd(a) || (now.straggler && !open ? score(b) - score(a) : 0) || a - b), shown = ranks.length > 10 ? sorted.slice(0, Math.max(4, sorted.filter(isOdd).length)) : sorted, rest = sorted.slice(shown.length, 256);
  const wasOpen = shares.querySelector("details[open]") !== null, isLocal = now.nodes.every((each) => each.sent_bytes === null), nodes = new Map(now.nodes.map((each) => [each.name, each]));
  const titles = [["rank"], ["node", "wide"], ["state"], ["steps", "n wide"], [""], ["computes", "n wide"], ["waits", "n"], ["is awaited", "n", "how long all other ranks together waited for it"], ["is last", "n wide", "of the collectives that all ranks recorded"],
    ["straggler score", "n wide", "how much later than the median rank it reaches collectives, as a share of its steps"], ["memory", "n wide", "peak, of its node"], ...(isLocal ? [] : [["sent", "n wide", "by its node"]])];
  const row = (rank) => {
    const each = now.shares[rank] || {}, late = times.get(rank), node = nodes.get(nodeOf(rank)), state = states.get(rank), waits = (each.waiting || 0) + (open && open.ranks.includes(rank) ? open.lasted : 0), caused = (each.caused || 0) + (open && open.all.includes(rank) ? open.lasted * open.ranks.length : 0);
    const words = stateOfRank(now, state), split = el("div", { class: "split" }, kinds.map((name) => { const part = el("i", { class: name, title: `${name}: ${seconds(each[name] || 0)}` }); part.style.width = `${(100 * (each[name] || 0)) / most}%`; return part; }));
    const cells = [String(rank), nodeOf(rank), el("span", { class: words.kind, title: words.title }, words.words), state && state.step !== null && !node ? state.step : node ? node.steps : "–", split, seconds(total(each) - (each.waiting || 0) - (each.moving || 0) - (each.collective || 0)), seconds(waits), seconds(caused),
      late && late.collectives ? percent(late.last / late.collectives) : "–", late && !open ? late.straggler_score.toFixed(2) : "–", node ? bytes(node.peak_memory_bytes) : "–", ...(isLocal ? [] : [node ? bytes(node.sent_bytes) : "–"])];
    return el("tr", { class: isOdd(rank) ? "odd" : "" }, cells.map((value, at) => el("td", { class: titles[at][1] || (at === 4 ? "bars" : "") }, value)));
  };
  const table = (some) => el("table", { class: "ranks" }, el("thead", {}, el("tr", {}, titles.map(([name, kind, title]) => el("th", { class: kind, title }, name)))), el("tbody", {}, some.map(row)));
  shares.replaceChildren(el("h3", {}, "Ranks, and where their time went"), ranks.length ? table(shown) : el("p", { class: "dim" }, "No rank has started yet."),
    rest.length ? el("details", { open: wasOpen }, el("summary", { class: "small" }, `${count(ranks.length - shown.length, "more rank")}, ${alike(now, rest)}`), table(rest)) : "",
    ranks.length && !Object.keys(now.shares).length ? el("p", { class: "small dim" }, now.is_over ? "No rank recorded the times of its steps: only torch's optimizers, loaders and collectives are observed." : "The first steps have not ended yet.") : "");
}

const total = (share) => Object.entries(share).reduce((sum, [name, value]) => sum + (name === "caused" ? 0 : value), 0);

// What ranks have in common: their state, and about how long they waited.
function alike(now, ranks) {
  const states = new Set(ranks.map((rank) => stateOfRank(now, now.ranks.find((each) => each.rank === rank)).words)), waits = ranks.map((rank) => (now.shares[rank] || {}).waiting || 0);
  return `${[...states].filter(Boolean).slice(0, 3).join(" or ")}; each waited ${seconds(Math.min(...waits))} to ${seconds(Math.max(...waits))}`;
}

function stateOfRank(now, state) {
  if (!state) return { words: "", kind: "" };
  if (now.cause && now.cause.rank === state.rank && !now.hang) return { words: "failed first", kind: "straggler" };
  if (now.hang && now.hang.rank === state.rank) return { words: "the cause", kind: "straggler" };
  if (state.stopped) return { words: "stopped by composesim", kind: "dim", title: state.signal ? `signal ${state.signal}` : `exit code ${state.exit_code}` };
  if (state.exit_code === 0) return { words: "finished", kind: "" };
  return { words: state.exit_code ? `exit code ${state.exit_code}` : state.signal ? `signal ${state.signal}` : state.phase || "", kind: state.exit_code || state.signal ? "straggler" : "" };
}

// The longest waits, each collective once, and whose code all waited for.
const MOST_WAITS = 6;

function longestWaits(most, late = null) {
  const all = [...run.waits.values()].filter((each) => late === null || each.late === late), after = all.filter((each) => each.step > 1);  // the first step is a warm-up
  return (after.length ? after : all).sort((a, b) => b.lasted - a.lasted).slice(0, most);
}

function drawWaits(now, open) {
  const alike = new Map();  // waits for one rank in one place
  for (const wait of longestWaits(Infinity)) listIn(alike, `${wait.late}/${run.texts[wait.text].replace(/ #\d+/, "")}`).push(wait);
  const place = document.getElementById("waits"), longest = [...alike.values()].slice(0, MOST_WAITS).map(([first, ...others]) => ({ ...first, others: others.length })), last = endOfRun(), blame = blamed().filter((each) => each.cost > last / 100).slice(0, 5);
  place.hidden = !open && !blame.length && !(longest.length && longest[0].lasted > noticeable());
  const entry = (t, who, what, act) => el("div", {}, el("b", {}, seconds(t)), el("div", {}, act ? el("button", { class: "text", onclick: act }, who) : who, el("div", { class: "small dim" }, linked(what))));
  const waiters = (wait) => `step ${wait.step}: ${wait.ranks > 1 ? `${wait.ranks} ranks` : `rank ${wait.rank}`} for rank ${wait.late}${itself(wait)}${wait.others ? `, the longest of ${wait.others + 1}` : ""}`, itself = (wait) => { const own = ownWait(wait.late, wait.began, wait.ended); return own.lasted > wait.lasted / 2 ? `, which itself waits for rank ${own.late}` : ""; };
  place.replaceChildren(el("div", { class: "two" }, el("div", {}, el("h3", {}, "Longest waits"), el("div", { class: "entries" }, open ? entry(open.lasted, `now: ${ranksInWords(open.ranks)} for ${ranksInWords(open.all)}`, open.what || "", () => { show(now.t - open.lasted * 1.5, now.t); toTimeline(); }) : null,
    longest.map((wait) => entry(wait.lasted, waiters(wait), run.texts[wait.text], () => jumpTo(wait))))),
  !blame.length ? null : el("div", {}, el("h3", {}, "Whose code all waited for"), el("div", { class: "entries" }, blame.map((each) => entry(each.cost, `rank ${each.late}, ${count(each.count, "collective")}, ${percent(each.cost / last)} of the run`, each.place ? `at ${inWords(each.place)}` : `before ${run.texts[each.text].replace(/ #\d+/, "")}`, () => { const wait = longestWaits(1, each.late)[0]; if (wait) jumpTo(wait); }))))));
}

function hangSection(now) {
  const hang = now.hang;
  if (!hang) return null;
  const groups = new Map();  // equal stacks together
  for (const each of hang.ranks) listIn(groups, each.is_culprit ? each.rank : JSON.stringify([each.waits_in, each.frames])).push(each);
  return el("section", { id: "hang" }, el("h2", {}, "Hang", el("small", {}, "the stacks of all ranks, the cause first")),
    el("div", { class: "stacks", tabindex: 0, "aria-label": "Stacks of all ranks" }, [...groups.values()].slice(0, 64).map((same) => { const [each] = same; return el("div", { class: `card ${each.is_culprit ? "culprit" : ""}` },
      el("h3", {}, same.length > 1 ? `ranks ${ranges(same.map((one) => one.rank))} ` : `rank ${each.rank} `, el("span", { class: `pill ${each.is_culprit ? "bad" : ""}` }, each.is_culprit ? "the cause" : "collateral")),
      el("p", { class: "small" }, linked(each.waits_in ? `waits in ${each.waits_in}` : each.stands)),
      stackOf(each.frames)); })));
}

const isLibrary = ([file]) => /\/(site|dist)-packages\/|\/lib\/python3|^</.test(file);

// A stack from the innermost frame on; if some frames are the user's, they come first, and those of libraries only on demand.
function stackOf(frames) {
  const mine = frames.filter((each) => !isLibrary(each));
  const rows = (some) => some.map((each) => el("div", { class: `frame ${isLibrary(each) ? "lib" : "mine"}` }, placeLink(each[0], each[1], `${shortPath(each[0]).split("/site-packages/").pop()}:${each[1]}`), ` ${each[2]}`));
  if (!mine.length || mine.length === frames.length) return rows(frames);
  return [rows(mine), el("details", { class: "small dim" }, el("summary", {}, `the whole stack, ${count(frames.length, "frame")}`), rows(frames))];
}

function checksSection(now) {
  if (!now.checks.length) return null;
  const order = ["failed", "warned", "passed", "not-applicable"];
  const sorted = [...now.checks].sort((a, b) => order.indexOf(a.status) - order.indexOf(b.status));
  const problems = sorted.filter((each) => ["failed", "warned"].includes(each.status)), rest = sorted.filter((each) => !problems.includes(each)), idle = rest.filter((each) => each.status === "not-applicable");
  return el("section", { id: "checks" }, el("h2", {}, "Checks", el("small", {}, order.map((each) => [each, now.checks.filter((check) => check.status === each).length]).filter(([, n]) => n).map(([name, n]) => `${n} ${name.replace("-", " ")}`).join(", "))),
    problems.map((each) => problemCard(now, each)),
    el("div", { class: "card" }, [[rest.filter((each) => each.status === "passed"), "passed"], [idle, "not applicable"]].map(([some, words]) => (some.length ? el("details", { class: "small" }, el("summary", {}, `${count(some.length, "check")} ${words}`), checkList(some)) : null))));
}

const checkList = (checks) => el("ul", { class: "checks" }, checks.map((each) => el("li", {}, el("span", { class: `mark ${each.status}` }, MARK[each.status]), el("b", {}, each.id), " ", linked(each.detail))));

function problemCard(now, check) {
  const place = check.place;
  const words = el("div", {}, el("p", {}, el("span", { class: `mark ${check.status}` }, MARK[check.status]), el("b", {}, check.id)), el("p", {}, linked(check.detail)),
    check.follows ? el("p", {}, el("b", {}, "Follows from: "), check.follows) : null, check.fix ? el("p", {}, el("b", {}, "Fix: "), linked(check.fix)) : null, check.ranks.length ? el("p", { class: "small dim" }, `${check.ranks.length > 1 ? "ranks" : "rank"} ${check.ranks.join(", ")}`) : null,
    el("p", { class: "small" }, typed(`composesim check --explain ${check.id}`)));
  const code = place && place.line ? el("div", {}, snippet(place.file, place.line, check.status, 4)) : place ? el("p", { class: "mono dim" }, shortPath(place.file)) : null;
  return el("div", { class: `card ${check.status === "failed" ? "bad-edge" : "warn-edge"}` }, code ? el("div", { class: "two" }, words, code) : words);
}

function metricsSection(now) {
  const odd = [now.straggler, now.cause].filter(Boolean).map((each) => each.rank).filter((each) => each !== null), named = [...odd.map(nameOf), ...odd.map((rank) => nodeOf(rank))];
  const charts = [...run.metrics].map(([name, byRank]) => chart(name, banded([...byRank].sort((a, b) => a[0] - b[0]).map(([rank, points]) => [nameOf(rank), points, rank ?? 7]), named))).filter(Boolean);
  const ranks = [...new Set([...run.metrics.values()].flatMap((byRank) => [...byRank.keys()]))].sort((a, b) => a - b).map((rank) => [nameOf(rank), rank ?? 7]);
  const nodes = [...run.usage].sort((a, b) => a[0].localeCompare(b[0], "en", { numeric: true }));
  const column = (index, map = (value) => value) => banded(nodes.map(([node, rows], shade) => [node, rows.filter((each) => each[index] !== null).map((each) => [each[0], map(each[index])]), shade]), named);
  const rate = (index) => banded(nodes.map(([node, rows], shade) => [node, rows.slice(1).map((each, at) => [each[0], each[index] === null || rows[at][index] === null ? null : Math.max(0, (each[index] - rows[at][index]) / Math.max(0.05, each[0] - rows[at][0]))]).filter(([, y]) => y !== null), shade]), named);
  const usage = [chart("CPUs in use", column(1), { unit: "s", from: 0 }), chart("Memory", column(2), { unit: "s", format: bytes, from: 0 }),
    chart("Sent per second", rate(4), { unit: "s", format: bytes, from: 0 }), chart("GPU use", column(5), { unit: "s", format: percent, from: 0 }),
    chart("GPU memory", column(6), { unit: "s", format: bytes, from: 0 })].filter(Boolean);
  if (!charts.length && !usage.length) return null;
  const bands = (labels) => (labels.length > MOST_CURVES ? [["lowest and highest", 7], ["median", 0], ...labels.filter(([label]) => named.includes(label)).map(([label]) => [label, 1])] : labels);
  const group = (words, labels, drawn) => (drawn.length ? [el("p", { class: "small" }, `${words} `, curveLegend(bands(labels))), el("div", { class: "grid" }, drawn)] : null);
  return el("section", { id: "metrics" }, el("h2", {}, "Metrics"), group("Numbers that ranks printed", ranks, charts), group("What nodes used", nodes.map(([node], shade) => [node, shade]), usage));
}

const nameOf = (rank) => (rank === null ? "driver" : rank === GAP ? "" : `rank ${rank}`);

// Each pixel of a strip is a sample, in the order in which the rank drew it; the color is the place of the sample in the data set.
function samplesSection(now) {
  if (!now.samples || !now.samples.length) return null;
  const loaders = new Map();
  for (const strip of now.samples) listIn(loaders, strip.loader).push(strip);
  return el("section", { id: "samples" }, el("h2", {}, "Samples", el("small", {}, "which rank drew which sample, in order; the color is its place in the data set")),
    [...loaders.values()].map((strips) => el("div", { class: "card" },
      el("h3", {}, strips[0].data, el("span", { class: "dim small" }, ` ${strips[0].length === null ? "" : `${count(strips[0].length, "sample")} `}${strips[0].at.length ? `at ` : ""}`, strips[0].at.length ? placeLink(strips[0].at[0], strips[0].at[1]) : null)),
      el("div", { class: "strips" }, strips.map((strip) => [el("b", {}, `epoch ${strip.epoch}`), el("span", { class: strip.repeated || strip.as_before ? "" : "dim" }, stripWords(strip)),
        Object.entries(strip.ranks).slice(0, 32).map(([rank, indices]) => [el("span", { class: "dim" }, `rank ${rank}`), stripOf(indices, strip.length || Math.max(...indices) + 1, `rank ${rank}: ${indices.slice(0, 8).join(", ")} …`)])])))));
}

function stripWords(strip) {
  const parts = [`${strip.drawn} drawn`];
  if (strip.repeated) parts.push(`${count(strip.repeated, "sample")} more than once`);
  if (!strip.is_part && strip.length > strip.distinct) parts.push(`${strip.length - strip.distinct} never`);
  if (strip.as_before) parts.push("in the same order as in the epoch before");
  return parts.join(", ");
}

function stripOf(indices, length, label) {
  const canvas = el("canvas", { class: "strip", width: indices.length, height: 1, role: "img", "aria-label": label });
  const pen = canvas.getContext("2d"), image = pen.createImageData(indices.length, 1);
  indices.forEach((sample, at) => {  // viridis, nearly
    const share = sample / Math.max(1, length - 1);
    image.data.set([68 + 185 * share ** 2.2, 1 + 230 * share, 84 + 120 * Math.sin(Math.PI * (0.15 + 0.75 * share)) - 60 * share, 255], 4 * at);
  });
  pen.putImageData(image, 0, 0);
  return canvas;
}
