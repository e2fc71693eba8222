// The card at the top: what is wrong, who is to blame, the line, the fix, and what to type.

const FIVE = 2;  // lines of source before and after the one that matters

function verdictCard(now) {
  const problem = hangProblem(now) || waitProblem(now) || causeProblem(now) || checkProblem(now) || stragglerProblem(now);
  const met = scenarioWords(now), failed = now.checks.filter((each) => each.status === "failed" && !each.follows && each.id !== (problem || {}).check);
  if (!problem && !met) return null;
  if (!problem) return el("div", { class: "card good-edge", id: "verdict" }, met);
  const { text, where, place, fix, type, frames, jump } = problem;
  return el("div", { class: `card ${problem.is_bad ? "bad" : "warn"}-edge`, id: "verdict", role: now.is_over ? null : "status" },
    el("div", { class: place || frames ? "two" : "" }, el("div", {}, el("p", { class: "cause" }, el("span", {}, linked(text)), copyButton(text)), where ? el("p", { class: "dim small" }, where) : null,
      fix ? el("p", {}, el("b", {}, "Fix: "), linked(fix)) : null,
      failed.length ? el("ul", { class: "small also" }, failed.map((each) => el("li", {}, el("span", { class: "mark failed" }, MARK.failed), el("a", { href: "#checks" }, each.id), ` ${each.detail}`))) : null, met,
      el("p", { class: "bar acts" }, jump ? el("button", { onclick: jump }, "Show in the timeline") : null, now.hang ? el("button", { onclick: () => goToSection("hang") }, "Stacks") : null, typed(type))),
    place || frames ? el("div", {}, frames || snippet(place[0], place[1], "failed")) : null));
}

function hangProblem(now) {
  if (!now.hang) return null;
  const mismatch = now.checks.find((each) => each.id === "collective-mismatch" && each.status === "failed" && !each.follows), since = stallOf(now, now.hang.rank);
  return { is_bad: true, text: now.hang.message, fix: mismatch ? mismatch.fix : now.hang.fix, check: mismatch ? mismatch.id : "hang", place: now.hang.place,
    where: since === null ? "" : `since ${since.toFixed(1)} s`, jump: since === null ? null : () => { showAround(since); visit(since + 0.001, now.hang.rank); toTimeline(); },
    type: now.is_over ? `composesim logs --run ${now.run}${now.hang.rank === null ? "" : ` --rank ${now.hang.rank}`}` : `composesim dump --run ${now.run}` };
}

// When the others began to wait for the cause of a hang.
function stallOf(now, rank) {
  const waits = [...run.waits.values()].filter((each) => each.late === rank && each.ended >= endOfRun() - 5).map((each) => each.began);
  const stalls = Object.values(now.stalls).flat().map(([began]) => began);
  return waits.length ? Math.max(...waits) : stalls.length ? Math.min(...stalls) : null;
}

function waitProblem(now) {
  const wait = openWait();
  if (!wait) return null;
  const place = PLACE.exec(wait.what || ""), own = lineNow(wait.all[0]), who = ranksInWords(wait.all.slice(0, 1), true);
  return { text: `${ranksInWords(wait.ranks, true)} ${wait.ranks.length > 1 ? "wait" : "waits"} for ${ranksInWords(wait.all)} in ${wait.what || "a collective"}.${own ? ` ${who} is at ${inWords(own)}.` : ""}`,
    where: `${ranksInWords(wait.all, true)} on ${[...new Set(wait.all.map((each) => nodeOf(each)))].join(", ")}${wait.began === null ? "" : ` · since ${wait.began.toFixed(1)} s`}`, place: own || (place && [place[1], Number(place[2])]), type: `composesim dump --run ${now.run}`,
    jump: () => { show(now.t - wait.lasted * 1.5, now.t); toTimeline(); } };
}

function causeProblem(now) {
  const cause = now.cause;
  if (!cause || cause.kind === "check") return null;
  const [, ...rest] = cause.message.split("\n"), all = framesIn(cause.traceback || ""), own = all.filter((each) => !isLibrary(each)), last = own[own.length - 1];
  const died = cause.rank === null ? null : endOfLife(cause.rank);
  return { is_bad: true, text: causeInWords(cause), place: null, where: [cause.kind, died === null ? "" : `at ${died.toFixed(1)} s`].filter(Boolean).join(" · "),
    frames: cause.traceback || rest.length ? [last ? snippet(last[0], last[1], "failed") : null, rest.length ? el("pre", {}, rest.join("\n")) : null, cause.traceback ? tracebackOf(cause.traceback, own, all) : null] : null,
    type: `composesim logs --run ${now.run}${cause.rank !== null ? ` --rank ${cause.rank}` : ""}`, jump: died === null ? null : () => { showAround(died); visit(died, cause.rank); toTimeline(); } };
}

function causeInWords({ rank, node, message }) {
  const [first] = message.split("\n");
  return rank !== null && !first.startsWith("rank ") ? `rank ${rank}${node ? ` on ${node}` : ""}: ${first}` : first;
}

const framesIn = (text) => [...text.matchAll(/^ *File "([^"]+)", line (\d+)(?:, in (.+))?$/gm)].map(([, file, line, name]) => [file, Number(line), name || ""]);

// A traceback: frames of the script, those of libraries on demand; a text without frames as it is.
function tracebackOf(text, own, all) {
  if (!own.length) return el("pre", { tabindex: 0 }, text);
  return [el("div", { class: "frames" }, own.map((each) => el("div", { class: "frame mine" }, placeLink(each[0], each[1]), ` ${each[2]}`))),
    el("details", { class: "small dim" }, el("summary", {}, all.length > own.length ? `the whole traceback, with ${count(all.length - own.length, "frame")} of libraries` : "the whole traceback"), el("pre", { tabindex: 0 }, text), copyButton(text))];
}

function checkProblem(now) {
  const failed = now.checks.find((each) => each.status === "failed" && !each.follows) || now.checks.find((each) => each.status === "failed");
  if (!failed) return null;
  return { is_bad: now.verdict !== "passed", text: `${failed.id}: ${failed.detail}`, check: failed.id, fix: failed.fix, place: failed.place && failed.place.line ? [failed.place.file, failed.place.line] : null,
    where: failed.ranks.length ? `${failed.ranks.length > 1 ? "ranks" : "rank"} ${ranges(failed.ranks)}` : "", type: `composesim check --explain ${failed.id}` };
}

// A rank for which the others usually wait, with what that costs. A wait that is open now is the better sentence.
function stragglerProblem(now) {
  const slow = now.straggler;
  if (!slow || openWait()) return null;
  const worst = blamed().find((each) => each.late === slow.rank), own = PLACE.exec(`(${slow.late_at})`), place = own || (worst && PLACE.exec(run.texts[worst.text])), steps = Math.max(1, stepsInOrder().length), each = slow.steps_s / steps;
  return { text: `rank ${slow.rank} (${nodeOf(slow.rank)}) holds up the others: last in ${slow.last} of ${slow.collectives} collectives, ${seconds(slow.held_up_s / steps)} of each ${seconds(each)} step.${own ? ` While they wait, it is mostly at ${slow.late_at}.` : ""}`,
    where: `If rank ${slow.rank} were as fast as the median, ${count(steps, "step")} would take ${seconds(slow.steps_s - slow.held_up_s)} instead of ${seconds(slow.steps_s)}.`,
    place: place && [place[1], Number(place[2])], fix: own ? "Look at what this line does on this rank that it does not do on others: its data, its node, code under a condition on the rank." : place ? "Look at what only this rank does before this line: its data, its node, code under a condition on the rank." : "",
    type: `composesim ${now.is_over ? "trace" : "profile"} ${now.run}`, jump: () => { const wait = longestWaits(1, slow.rank)[0]; if (wait) jumpTo(wait); } };
}

function scenarioWords(now) {
  const all = now.expectations || [], met = all.filter((each) => each.status === "passed").length;
  if (!all.length) return null;
  const story = now.faults.map((each) => `${each.text} at ${seconds(each.begun_s)}${each.recovered_s === null ? "" : `; training went on after ${seconds(each.recovered_s)}`}`).join(". ");
  return el("div", { id: "scenario" }, el("p", { class: "cause" }, `${met} of ${all.length} ${all.length > 1 ? "expectations" : "expectation"} of the scenario ${now.scenario ? `“${now.scenario.name}” ` : ""}met.`), story ? el("p", {}, `${story}.`) : null,
    el("ul", { class: "checks" }, all.map((each) => el("li", {}, el("span", { class: `mark ${each.status}` }, MARK[each.status] || "–"), el("b", {}, `${each.id} ${each.wanted}`), each.detail === each.wanted ? "" : ` ${each.detail}`))));
}

const toTimeline = () => document.getElementById("timeline").scrollIntoView({ block: "start" });

// Lines of source around one of them, which is marked.
function snippet(file, line, status, around = FIVE) {
  const source = sourceOf(file);
  if (!source) return el("p", { class: "mono dim" }, `${shortPath(file)}:${line}`);
  const from = Math.max(source.first, line - around), lines = source.lines.slice(from - source.first, line + around + 1 - source.first);
  return [el("p", { class: "small dim" }, el("span", {}, placeLink(file, line)), copyButton(`${shortPath(file)}:${line}`)), el("pre", { class: `source ${status}`, tabindex: 0, "aria-label": `${shortPath(file)}, line ${line}` }, lines.map((text, index) =>
    el("div", { class: from + index === line ? "at" : "" }, el("i", {}, String(from + index)), text)))];
}
