// Make elements. Texts of scripts and ranks only ever become text nodes.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  return `${Math.floor(value / 60)} min ${String(Math.floor(value % 60)).padStart(2, "0")} s`;
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toPrecision(3)} ${units[unit]}`;
}

// `0–3, 6` for 0, 1, 2, 3, 6.
function ranges(numbers) {
  const spans = [];
  for (const each of [...numbers].sort((a, b) => a - b)) {
    const last = spans[spans.length - 1];
    if (last && last[1] === each - 1) last[1] = each; else spans.push([each, each]);
  }
  return spans.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
}

// What can be typed, with a button that copies it.
const typed = (text) => el("span", { class: "typed" }, el("code", {}, text), copyButton(text));

// A page that was opened as a file may not write into the clipboard: there, what is beside the button is selected and copied.
function copyButton(text) {
  const button = el("button", { class: "copy", title: `Copy: ${text}`, "aria-label": `Copy: ${text}`, onclick: async () => {
    try { await navigator.clipboard.writeText(text); } catch { getSelection().selectAllChildren(button.previousSibling || button.parentElement); document.execCommand("copy"); }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  } }, "copy");
  return button;
}

// A sentence whose places, as `train.py, line 8` or `train.py:8`, lead to the source, and whose words between backticks are code.
const linked = (text) => text.split(/(`[^`\n]+`)/).map((part) => (part.length > 2 && part.startsWith("`") && part.endsWith("`") ? el("code", {}, part.slice(1, -1)) : placed(part)));

function placed(text) {
  return text.split(/([^\s()'"`,]+\.py(?:"?, line |:)\d+)/).map((part) => {
    const place = /^(.+\.py)(?:"?, line |:)(\d+)$/.exec(part);
    return place ? placeLink(place[1], Number(place[2]), part) : part;
  });
}

const placeLink = (file, line, words = `${shortPath(file)}:${line}`) => (sourceOf(file) ? el("a", { class: "mono", href: "#source", onclick: (event) => { event.preventDefault(); event.stopPropagation(); showSource(file, line); } }, words) : words);

const percent = (value) => (value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`);
const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;
const number = (value) => (Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4))));
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function shortPath(file) {
  const folder = run.now.folder ? `${run.now.folder}/` : "";
  return folder && file.startsWith(folder) ? file.slice(folder.length) : file;
}

function showTip(text, x, y) {
  const tip = document.getElementById("tip");
  if (!text) { tip.hidden = true; return; }
  tip.hidden = false;
  tip.textContent = text;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - box.width - 6))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18}px`;
}
