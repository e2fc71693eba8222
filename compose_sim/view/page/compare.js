// Two runs side by side: the one that is shown, and one that it is compared with.

const compared = { other: null };

// Read another run, as the report of one file has it in `now.against`.
async function compareWith(name) {
  compared.other = null;
  if (name) {
    const reader = (await ask(`/events?run=${encodeURIComponent(name)}`)).body.getReader();
    for await (const some of received(reader)) {
      const whole = some.find((each) => !each.now.reading_bytes);  // before it, of long logs, comes a message with their end only
      if (!whole) continue;
      compared.other = { now: whole.now, metrics: whole.metrics };
      break;
    }
    reader.cancel();
  }
  render();
  if (name) goToSection("compare");
}

function compareSection(now) {
  const other = now.against || compared.other;
  if (!other) return null;
  const old = other.now, names = [old.run, now.run], steps = (each) => Math.max(0, ...each.nodes.map((node) => node.steps));
  const rate = (each) => { const t = (each.timings.total_s || 0) - (each.timings.first_step_s || 0); return steps(each) && t > 0 ? steps(each) / t : null; };
  const rows = [["verdict", old.verdict, now.verdict], ["ranks", old.ranks.length, now.ranks.length], ["took", seconds(old.timings.total_s), seconds(now.timings.total_s)], ["first step after", seconds(old.timings.first_step_s), seconds(now.timings.first_step_s)],
    ["optimizer steps", steps(old), steps(now)], ["steps per second", rate(old) && number(Number(rate(old).toPrecision(3))), rate(now) && number(Number(rate(now).toPrecision(3)))], ["slowest", old.straggler ? `rank ${old.straggler.rank}` : "–", now.straggler ? `rank ${now.straggler.rank}` : "–"],
    ...metricNames(now).slice(0, 4).filter((name) => old.metrics[name] !== undefined).map((name) => [name, number(old.metrics[name]), number(now.metrics[name])])];
  const before = new Map(old.checks.map((each) => [each.id, each])), changed = now.checks.filter((each) => before.has(each.id) && before.get(each.id).status !== each.status);
  const most = Math.max(1e-9, ...[old, now].map((each) => Math.max(...Object.values(each.shares).map(total), 0)));
  return el("section", { id: "compare" }, el("h2", {}, "Compare", el("small", {}, `${old.run} and ${now.run}`)), el("div", { class: "grid" },
    el("div", { class: "card" }, el("table", {}, el("thead", {}, el("tr", {}, ["", ...names].map((name) => el("th", {}, name)))), el("tbody", {}, rows.map((row) => el("tr", { class: row[1] === row[2] ? "" : "changed" }, row.map((value) => el("td", {}, String(value ?? "–")))))))),
    el("div", { class: "card" }, el("h3", {}, "Where the time of the ranks went"), [old, now].map((each) => el("div", { class: "pair" }, el("span", { class: "small" }, each.run), meanSplit(each, most)))),
    el("div", { class: "card" }, el("h3", {}, "Checks that changed"), changed.length ? el("ul", { class: "checks" }, changed.map((each) => el("li", {}, el("span", { class: `mark ${each.status}` }, MARK[each.status]), el("b", {}, each.id), ` was ${before.get(each.id).status.replace("-", " ")}: ${each.detail}`))) : el("p", { class: "dim" }, now.checks.length ? "None." : "There are no checks.")),
    curvesOf(other, names)));
}

function meanSplit(now, most) {
  const all = Object.values(now.shares), mean = (name) => all.reduce((sum, each) => sum + (each[name] || 0), 0) / Math.max(1, all.length);
  return el("div", { class: "split" }, Object.keys(KIND).map((name) => { const part = el("i", { class: name, title: `${name}: ${seconds(mean(name))} per rank` }); part.style.width = `${(100 * mean(name)) / most}%`; return part; }));
}

// The first rank's numbers of both runs, over each other, with a line where they differ first.
function curvesOf(other, names) {
  const theirs = new Map();
  for (const [name, rank, step, value] of other.metrics) if (rank === null || rank === 0) listIn(theirs, name).push([step, value]);
  return metricNames(run.now).slice(0, 3).filter((name) => theirs.has(name)).map((name) => {
    const own = run.metrics.get(name), ours = own.get(0) || own.get(null) || [], both = inBoth(theirs.get(name), ours);
    const first = both.find(([, a, b]) => !(Math.abs(a - b) <= 1e-6 * Math.max(Math.abs(a), Math.abs(b)) || Object.is(a, b))), mark = first ? first[0] : null;
    const said = first ? `differs first at step ${mark}` : both.length ? `equal at the ${both.length} steps that both have` : "no step is in both";
    return chart(`${name}: ${names[0]} and ${names[1]}`, [[names[0], theirs.get(name), 7], [names[1], ours, 0]], { mark, said });
  });
}

// The steps that have one value in each run, with both values.
function inBoth(theirs, ours) {
  const count = new Map(), values = new Map(theirs);
  for (const [step] of [...theirs, ...ours]) count.set(step, (count.get(step) || 0) + 1);
  return ours.filter(([step]) => values.has(step) && count.get(step) === 2).map(([step, value]) => [step, values.get(step), value]);
}
