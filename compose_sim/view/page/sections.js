// Overview, hang, checks, metrics and samples.

const MARK = { passed: "✔", failed: "✘", warned: "!", "not-applicable": "–" };
const VERDICTS = { passed: ["good", "✔ passed"], failed: ["bad", "✘ failed"], running: ["", "● running"], inconclusive: ["warn", "? inconclusive"] };

function verdictPill(now) {
  const failed = now.checks.filter((each) => each.status === "failed" && !each.follows).map((each) => each.id).join(", ");
  if (now.hang && !now.is_over) return el("span", { class: "pill bad" }, "● makes no progress");
  if (now.verdict === "passed" && failed) return el("span", { class: "pill warn" }, `! passed, but ${failed} failed`);  // of `up`
  const [kind, words] = VERDICTS[now.verdict] || ["bad", `✘ ${now.verdict}`];
  return el("span", { class: `pill ${kind}` }, words);
}

function headOf(now) {
  const nodes = now.nodes.length || Object.keys(now.phases).length;
  const facts = [now.program, `${count(nodes, "node")}, ${count(now.ranks.length || now.world_size, "rank")}`, now.engine === "local" ? "plain processes" : [now.engine, now.image && `image ${now.image}`].filter(Boolean).join(", "), now.backend,
    now.versions.torch && `torch ${now.versions.torch}${["older", "newer"].includes(now.torch_range) ? ` (${now.torch_range} than the tested range)` : ""}`, now.timings.started_at && new Date(now.timings.started_at * 1000).toLocaleString()];
  return [el("h1", {}, now.run), verdictPill(now), el("span", { class: "dim small", id: "age" }), el("span", { class: "brand" }, runList() || "composesim"), el("span", { class: "facts" }, facts.filter(Boolean).join(" · "))];
}

function overviewSection(now) {
  const metrics = Object.entries(now.metrics).filter(([name, value]) => typeof value === "number" && !["step", "epoch", "rank"].includes(name));
  const steps = Math.max(0, ...now.nodes.map((each) => each.steps)), first = now.timings.first_step_s, trained = first === null ? null : now.t - first;
  const wait = waitingShare(now);
  const tiles = [
    [now.is_over ? "took" : "running for", seconds(now.is_over ? now.timings.total_s : now.t)],
    steps ? ["optimizer steps", steps] : null,
    steps && trained > 0.2 && now.rounds.length < 2 ? ["steps per second", number(Number((steps / lastStepSpan(now, trained)).toPrecision(3)))] : null,
    ...metrics.slice(0, 3).map(([name, value]) => [name, number(value)]),
    wait && ["of the time spent waiting for ranks", percent(wait.share)],
    now.restarts ? [now.restarts === 1 ? "restart" : "restarts", now.restarts] : null,
    now.faults.length ? [now.faults.length === 1 ? "fault injected" : "faults injected", now.faults.length] : null,
  ].filter(Boolean);
  return el("section", { id: "overview" }, causeCard(now),
    el("div", { class: "tiles" }, tiles.map(([name, value]) => el("div", { class: "tile" }, el("b", {}, String(value)), el("span", {}, name)))),
    historyCard(now), nodesCard(now), now.cause ? null : now.is_over ? typeNext(`composesim trace ${now.run}`, `composesim report --run ${now.run} --html ${now.run}.html`) : typeNext(`composesim logs --run ${now.run} --follow`));
}

function lastStepSpan(now, trained) {
  const ends = [...run.spans.entries()].filter(([key]) => key.endsWith("/0")).map(([, each]) => each[each.length - 1]).map((each) => each.began + each.lasted);
  return ends.length ? Math.max(0.001, Math.max(...ends) - now.timings.first_step_s) : trained;
}

function waitingShare(now) {
  const all = Object.values(now.shares), waited = all.reduce((sum, each) => sum + (each.waiting || 0), 0);
  const total = all.reduce((sum, each) => sum + Object.entries(each).reduce((part, [name, value]) => part + (name === "caused" ? 0 : value), 0), 0);
  return total > 0 && all.length > 1 ? { share: waited / total } : null;
}

const typeNext = (...commands) => el("p", { class: "small dim" }, "Type next: ", commands.map((each, index) => [index ? " or " : "", el("code", {}, each)]));

function causeCard(now) {
  const cause = now.cause;
  if (!cause) return null;
  const [first, ...rest] = cause.message.split("\n");
  const where = [cause.rank !== null ? `rank ${cause.rank}` : "", cause.node || ""].filter(Boolean).join(" on ");
  const isCheck = cause.kind === "check";
  return el("div", { class: "card bad-edge" }, el("p", {}, el("b", {}, first)), el("p", { class: "dim small" }, [where, isCheck ? "found by a check" : cause.kind].filter(Boolean).join(" · ")),
    rest.length ? el("pre", {}, rest.join("\n")) : null,
    cause.traceback && !now.hang ? el("pre", { tabindex: 0 }, cause.traceback) : null,
    typeNext(isCheck ? `composesim check --explain ${first.split(":")[0]}` : `composesim logs --run ${now.run}${cause.rank !== null ? ` --rank ${cause.rank}` : ""}`));
}

function historyCard(now) {
  const rows = [
    ...now.faults.map((each) => ["fault", each.begun_s, each.text, [each.healed_s !== null ? `healed at ${seconds(each.healed_s)}` : "not healed", each.recovered_s !== null ? `training went on after ${seconds(each.recovered_s)}` : "", each.steps_lost ? `${count(each.steps_lost, "step")} repeated` : ""]]),
    ...now.rounds.slice(1).map((each) => ["round", each.began_s, `round ${each.generation + 1} with ${count(each.world_size, "rank")}`, [each.nodes.join(", ")]]),
  ].sort((a, b) => a[1] - b[1]);
  const notes = [...now.notes, ...now.hints.map((each) => `${each.place.file}, line ${each.place.line}: ${each.text}`), now.bottleneck && now.is_over && !now.cause ? `Most likely limited by ${now.bottleneck.what}: ${now.bottleneck.why}` : ""].filter(Boolean);
  if (!rows.length && !notes.length) return null;
  return el("div", { class: "card" }, rows.length ? el("table", { class: "history" }, el("tbody", {}, rows.map(([kind, t, what, more]) =>
    el("tr", {}, el("td", { class: "dim" }, kind), el("td", { class: "n" }, seconds(t)), el("td", {}, what), el("td", { class: "dim" }, more.filter(Boolean).join(", ")))))) : null,
    notes.map((note) => el("p", { class: "small" }, note)));
}

function nodesCard(now) {
  if (!now.nodes.length) return null;
  const shown = now.nodes.slice(0, 64);
  return el("div", { class: "card scroll" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "node"), el("th", {}, "ranks"), el("th", {}, "state"), el("th", { class: "n" }, "exit"), el("th", { class: "n" }, "steps"), el("th", { class: "n wide" }, "CPU time"), el("th", { class: "n" }, "peak memory"), el("th", { class: "n wide" }, "sent"))),
    el("tbody", {}, shown.map((each) => el("tr", {}, el("td", {}, each.name), el("td", {}, ranges(each.ranks)), el("td", {}, now.phases[each.name] === "exited" && each.exit_code === 0 ? "finished" : now.phases[each.name] || ""), el("td", { class: "n" }, each.exit_code === null ? "–" : each.exit_code),
      el("td", { class: "n" }, each.steps), el("td", { class: "n wide" }, seconds(each.cpu_seconds)), el("td", { class: "n" }, bytes(each.peak_memory_bytes)), el("td", { class: "n wide" }, bytes(each.sent_bytes)))))),
    now.nodes.length > shown.length ? el("p", { class: "small dim" }, `and ${now.nodes.length - shown.length} more`) : null);
}

// Where the time of each rank went, and who waits for whom: beside the cluster and below it.
function drawShares(now) {
  const names = ["data", "forward", "backward", "optimizer", "checkpoint", "waiting", "moving", "collective"], ranks = Object.entries(now.shares);
  const shares = document.getElementById("shares"), waits = document.getElementById("waits");
  waits.hidden = !run.waits.length;
  if (!ranks.length) {
    shares.replaceChildren(el("p", { class: "dim" }, now.is_over ? "No rank recorded the times of its steps: only torch's optimizers, loaders and collectives are observed." : "The first steps have not ended yet."));
    return;
  }
  const most = Math.max(...ranks.map(([, each]) => names.reduce((sum, name) => sum + (each[name] || 0), 0)));
  const times = new Map(now.rank_times.map((each) => [String(each.rank), each]));
  shares.replaceChildren(el("h3", {}, "Where the time of each rank went"), el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "rank"), el("th", {}, ""), el("th", { class: "n" }, "computes"), el("th", { class: "n" }, "waits"), el("th", { class: "n wide" }, "is awaited"),
    el("th", { class: "n wide", title: "of the collectives that all ranks recorded" }, "is last"), el("th", { class: "n", title: "how much later than the median rank it reaches collectives, as a share of its steps" }, "straggler score"))),
    el("tbody", {}, ranks.slice(0, 64).map(([rank, each]) => {
      const split = el("div", { class: "split" }, names.map((name) => { const part = el("i", { class: name, title: `${name}: ${seconds(each[name] || 0)}` }); part.style.width = `${(100 * (each[name] || 0)) / most}%`; return part; }));
      const computes = ["data", "forward", "backward", "optimizer", "checkpoint"].reduce((sum, name) => sum + (each[name] || 0), 0), late = times.get(rank);
      return el("tr", {}, el("td", {}, rank), el("td", {}, split), el("td", { class: "n" }, seconds(computes)), el("td", { class: "n" }, seconds(each.waiting || 0)), el("td", { class: "n wide" }, seconds(each.caused || 0)),
        el("td", { class: "n wide" }, late && late.collectives ? percent(late.last / late.collectives) : "–"), el("td", { class: late && now.straggler.startsWith(`rank ${rank}:`) ? "n straggler" : "n" }, late ? late.straggler_score.toFixed(2) : "–"));
    }))),
    now.straggler ? el("p", { class: "small" }, `The slowest: ${now.straggler}.`) : "");
  waits.replaceChildren(el("h3", {}, "Longest waits"), el("div", { class: "entries" }, run.waits.map((span) =>
    el("div", {}, el("b", {}, seconds(span.lasted)), el("div", {}, el("button", { class: "text", onclick: () => jumpTo(span) }, `rank ${span.rank} for rank ${span.late}, step ${span.step}`), el("div", { class: "small dim" }, run.texts[span.text]))))));
}

function hangSection(now) {
  const hang = now.hang;
  if (!hang) return null;
  return el("section", { id: "hang" }, el("h2", {}, "Hang"),
    el("p", {}, now.cause ? null : el("b", {}, `${hang.message}. `), hang.fix),
    el("div", { class: "stacks", tabindex: 0, "aria-label": "Stacks of all ranks" }, hang.ranks.slice(0, 64).map((each) => el("div", { class: `card ${each.is_culprit ? "culprit" : ""}` },
      el("h3", {}, `rank ${each.rank} `, el("span", { class: `pill ${each.is_culprit ? "bad" : ""}` }, each.is_culprit ? "the cause" : "collateral")),
      el("p", { class: "small" }, each.waits_in ? `waits in ${each.waits_in}` : each.stands),
      stackOf(each.frames)))));
}

// A stack from the innermost frame on; if some frames are the user's, they come first, and those of libraries only on demand.
function stackOf(frames) {
  const isLibrary = ([file]) => /\/(site|dist)-packages\/|\/lib\/python3|^</.test(file), mine = frames.filter((each) => !isLibrary(each));
  const rows = (some) => some.map((each) => el("div", { class: `frame ${isLibrary(each) ? "lib" : "mine"}` }, `${shortPath(each[0]).split("/site-packages/").pop()}:${each[1]} ${each[2]}`));
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
    el("div", { class: "card" }, checkList(rest.filter((each) => each.status === "passed")), idle.length ? el("details", { class: "small dim" }, el("summary", {}, `${count(idle.length, "check")} not applicable`), checkList(idle)) : null));
}

const checkList = (checks) => el("ul", { class: "checks" }, checks.map((each) => el("li", {}, el("span", { class: `mark ${each.status}` }, MARK[each.status]), el("b", {}, each.id), ` ${each.detail}`)));

function problemCard(now, check) {
  const place = check.place, source = place && (now.sources || {})[`${place.file}:${place.line}`];
  const words = el("div", {}, el("p", {}, el("span", { class: `mark ${check.status}` }, MARK[check.status]), el("b", {}, check.id)), el("p", {}, check.detail),
    check.follows ? el("p", {}, el("b", {}, "Follows from: "), check.follows) : null, check.fix ? el("p", {}, el("b", {}, "Fix: "), check.fix) : null, check.ranks.length ? el("p", { class: "small dim" }, `${check.ranks.length > 1 ? "ranks" : "rank"} ${check.ranks.join(", ")}`) : null,
    el("p", { class: "small dim" }, el("code", {}, `composesim check --explain ${check.id}`)));
  const code = source ? el("div", {}, el("p", { class: "small dim" }, `${shortPath(place.file)}:${place.line}`), el("pre", { class: `source ${check.status}`, tabindex: 0 },
    source[1].map((line, index) => el("div", { class: source[0] + index === place.line ? "at" : "" }, el("i", {}, String(source[0] + index)), line))))
    : place ? el("p", { class: "mono dim" }, `${shortPath(place.file)}:${place.line}`) : null;
  return el("div", { class: `card ${check.status === "failed" ? "bad-edge" : "warn-edge"}` }, code ? el("div", { class: "two" }, words, code) : words);
}

function metricsSection(now) {
  const charts = [...run.metrics].map(([name, byRank]) => chart(name, [...byRank].sort((a, b) => a[0] - b[0]).map(([rank, points]) => [nameOf(rank), points, rank ?? 7]))).filter(Boolean);
  const ranks = [...new Set([...run.metrics.values()].flatMap((byRank) => [...byRank.keys()]))].sort((a, b) => a - b).map((rank) => [nameOf(rank), rank ?? 7]);
  const nodes = [...run.usage].sort((a, b) => a[0].localeCompare(b[0], "en", { numeric: true }));
  const column = (index, map = (value) => value) => nodes.map(([node, rows], shade) => [node, rows.filter((each) => each[index] !== null).map((each) => [each[0], map(each[index])]), shade]);
  const rate = (index) => nodes.map(([node, rows], shade) => [node, rows.slice(1).map((each, at) => [each[0], each[index] === null || rows[at][index] === null ? null : Math.max(0, (each[index] - rows[at][index]) / Math.max(0.05, each[0] - rows[at][0]))]).filter(([, y]) => y !== null), shade]);
  const usage = [chart("CPUs in use", column(1), { unit: "s", from: 0 }), chart("Memory", column(2), { unit: "s", format: bytes, from: 0 }),
    chart("Sent per second", rate(4), { unit: "s", format: bytes, from: 0 }), chart("GPU use", column(5), { unit: "s", format: percent, from: 0 }),
    chart("GPU memory", column(6), { unit: "s", format: bytes, from: 0 })].filter(Boolean);
  if (!charts.length && !usage.length) return null;
  const group = (words, labels, drawn) => (drawn.length ? [el("p", { class: "small" }, `${words} `, curveLegend(labels)), el("div", { class: "grid" }, drawn)] : null);
  return el("section", { id: "metrics" }, el("h2", {}, "Metrics"), group("Numbers that ranks printed", ranks, charts), group("What nodes used", nodes.map(([node], shade) => [node, shade]), usage));
}

const nameOf = (rank) => (rank === null ? "driver" : `rank ${rank}`);

// Each pixel of a strip is a sample, in the order in which the rank drew it; the color is the place of the sample in the data set.
function samplesSection(now) {
  if (!now.samples || !now.samples.length) return null;
  const loaders = new Map();
  for (const strip of now.samples) listIn(loaders, strip.loader).push(strip);
  return el("section", { id: "samples" }, el("h2", {}, "Samples", el("small", {}, "which rank drew which sample, in order; the color is its place in the data set")),
    [...loaders.values()].map((strips) => el("div", { class: "card" },
      el("h3", {}, strips[0].data, el("span", { class: "dim small" }, ` ${strips[0].length === null ? "" : `${count(strips[0].length, "sample")} `}${strips[0].at.length ? `at ${shortPath(strips[0].at[0])}:${strips[0].at[1]}` : ""}`)),
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
