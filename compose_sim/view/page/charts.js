// Draw lines over steps or seconds: one chart per metric, one curve per rank or node.

const CHART = { width: 360, height: 150, left: 46, right: 8, top: 8, bottom: 22 };

function ticks(low, high, most, least = 0) {
  const raw = Math.max(least, (high - low || 1) / most), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  return found;
}

const MOST_CURVES = 8;  // more have no colors that can be told apart

// Of many curves, the lowest, the median and the highest value, and those that are named.
function banded(curves, named) {
  if (curves.length <= MOST_CURVES) return curves;
  const longest = curves.reduce((best, each) => (each[1].length > best.length ? each[1] : best), []);
  const part = (share) => longest.map(([x], at) => { const values = curves.map(([, each]) => (each[at] || [])[1]).filter(Number.isFinite).sort((a, b) => a - b); return [x, values[Math.round(share * (values.length - 1))]]; }).filter(([, y]) => y !== undefined);
  return [["lowest", part(0), 7], ["median", part(0.5), 0], ["highest", part(1), 7], ...curves.filter(([label]) => named.includes(label)).map(([label, each]) => [label, each, 1])];
}

// `curves` is a list of [label, [[x, y], …], color], where a rank or node has the same color, a number, in all charts.
function chart(title, curves, { unit = "step", format = number, from = null, mark = null, said = "" } = {}) {
  const points = curves.flatMap(([, each]) => each).filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  if (!curves.some(([, each]) => each.length > 1)) return null;
  let [left, right, low, high] = [Infinity, -Infinity, from === null ? Infinity : from, -Infinity];
  for (const [x, y] of points) {
    left = Math.min(left, x); right = Math.max(right, x); low = Math.min(low, y); high = Math.max(high, y);
  }
  if (high === low) { high += Math.abs(high) * 0.1 || 1; }
  const { width, height } = CHART;
  const x = (value) => CHART.left + ((value - left) / (right - left || 1)) * (width - CHART.left - CHART.right);
  const y = (value) => height - CHART.bottom - ((value - low) / (high - low)) * (height - CHART.top - CHART.bottom);
  const size = format === bytes ? 1024 ** Math.floor(Math.log2(Math.max(1, high)) / 10) : 1;
  const lines = ticks(low / size, high / size, 4).map((at) => at * size).map((at) => [
    svg("line", { class: "axis", x1: CHART.left, x2: width - CHART.right, y1: y(at), y2: y(at) }),
    svg("text", { class: "dim", x: CHART.left - 6, y: y(at) + 4, "text-anchor": "end" }, format(at)),
  ]);
  const under = [svg("text", { class: "dim", x: 0, y: height - 6 }, unit === "s" ? "" : unit), ticks(left, right, 5, unit === "s" ? 0 : 1).map((at) =>
    svg("text", { class: "dim", x: x(at), y: height - 6, "text-anchor": "middle" }, unit === "s" ? `${number(at)} s` : number(at)))];
  const drawn = curves.map(([, each, shade]) =>
    svg("polyline", { class: `curve c${shade % 8}`, points: each.filter((_, at) => at % Math.ceil(each.length / width) === 0).map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") }));
  const last = curves.map(([label, each]) => (each.length ? `${label} ${format(each[each.length - 1][1])}` : "")).filter(Boolean);
  const cross = svg("line", { class: "cross", y1: CHART.top, y2: height - CHART.bottom, "data-unit": unit, "data-left": left, "data-right": right, visibility: "hidden" });
  const image = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${last.join(", ")}` }, lines, under, drawn, mark === null ? null : svg("line", { class: "first", x1: x(mark), x2: x(mark), y1: CHART.top, y2: height - CHART.bottom }), cross);
  image.addEventListener("pointermove", (event) => {
    const box = image.getBoundingClientRect();
    const at = left + (((event.clientX - box.left) / box.width) * width - CHART.left) / (width - CHART.left - CHART.right) * (right - left);
    const nearest = curves.map(([label, each]) => [label, each.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best), each[0])]);
    const rows = nearest.filter(([, point]) => point).slice(0, 16).map(([label, point]) => `${label}: ${format(point[1])}`);
    const [, first] = nearest[0];
    showTip(`${unit === "s" ? seconds(first[0]) : `step ${first[0]}`}\n${rows.join("\n")}`, event.clientX, event.clientY);
  });
  image.addEventListener("pointerleave", () => showTip(""));
  return el("div", { class: "card" }, el("h3", {}, title), image, said ? el("p", { class: "small dim" }, said) : null);
}

// The moment that is shown, in all charts: at its time, or at the step that ranks were in.
function drawCrosshairs() {
  const t = lanes.cursor, step = t === null ? null : stepsInOrder().findLast((each) => each.began <= t);
  for (const each of document.querySelectorAll("#metrics .cross")) {
    const { unit, left, right } = each.dataset, at = unit === "s" ? t : step ? step.step : null, share = (at - left) / (right - left || 1);
    each.setAttribute("visibility", at === null || share < 0 || share > 1 ? "hidden" : "visible");
    for (const name of ["x1", "x2"]) each.setAttribute(name, CHART.left + share * (CHART.width - CHART.left - CHART.right));
  }
}

function curveLegend(labels) {
  return el("span", { class: "legend" }, labels.slice(0, 16).map(([label, shade]) => el("span", {}, el("i", { class: `k${shade % 8}` }), label)),
    labels.length > 16 ? `and ${labels.length - 16} more` : null);
}
