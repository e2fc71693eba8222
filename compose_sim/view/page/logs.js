// The logs of all ranks: only the lines in view are elements, so that any number of lines scrolls fluidly.

const ROW = 20, LONGEST = 2000;  // pixels of a line, and characters that are shown of it
const LEVEL = { error: /\b(ERROR|CRITICAL|FATAL|Traceback|[A-Z]\w*(Error|Exception))\b|^E\d{4} /, warning: /\bWARN(ING)?\b|\w+Warning\b|^W\d{4} / };
const logs = { lines: [], rank: "", words: "", level: "", follow: true, taken: 0, box: null, filler: null };

function logsSection() {
  logs.box = el("div", { id: "log", tabindex: 0, role: "log", "aria-label": "Output of the ranks" }, (logs.filler = el("div")));
  logs.box.addEventListener("scroll", () => { logs.follow = logs.box.scrollTop + logs.box.clientHeight > logs.box.scrollHeight - ROW; paintLogs(); });
  const search = el("input", { type: "search", placeholder: "Search", "aria-label": "Search the logs", oninput: (event) => { logs.words = event.target.value.toLowerCase(); filterLogs(); } });
  const ranks = el("select", { id: "log-rank", "aria-label": "Rank", onchange: (event) => { logs.rank = event.target.value; filterLogs(); } }, el("option", { value: "" }, "All ranks"));
  const levels = el("select", { id: "log-level", "aria-label": "Level", onchange: (event) => { logs.level = event.target.value; filterLogs(); } },
    [["", "All levels"], ["warning", "Warnings and errors"], ["error", "Errors"]].map(([value, words]) => el("option", { value }, words)));
  const follow = el("button", { id: "log-end", onclick: () => { logs.follow = true; logs.box.scrollTop = logs.box.scrollHeight; } }, "To the end");
  return el("section", { id: "logs" }, el("h2", {}, "Logs", el("small", { id: "log-count" })), el("div", { class: "card" }, el("div", { class: "bar" }, ranks, levels, search, el("span", { class: "push" }), follow), el("div", { class: "logs" }, logs.box, el("div", { id: "log-ticks", "aria-hidden": true }))));
}

const GAP = -1;  // instead of a rank: where lines are left out
const isShown = ([rank, line, , level]) => rank === GAP || ((logs.rank === "" || String(rank) === logs.rank) && level >= (logs.level === "error" ? 2 : logs.level ? 1 : 0) && (!logs.words || plain(line).toLowerCase().includes(logs.words)));

function filterLogs() { logs.lines = []; logs.taken = 0; if (logs.box) addLogs(); }

const plain = (line) => line.replace(/\x1b\[[0-9;]*m/g, "");

function addLogs() {
  const known = new Set([...document.querySelectorAll("#log-rank option")].map((each) => each.value));
  for (const rank of ranksOf(run.now).map(String)) if (!known.has(rank)) document.getElementById("log-rank").append(el("option", { value: rank }, `rank ${rank}`));
  for (; logs.taken < run.logs.length; logs.taken += 1) {
    if (isShown(run.logs[logs.taken])) logs.lines.push(logs.taken);
  }
  logs.filler.style.height = `${logs.lines.length * ROW}px`;
  const missing = run.now.lines_left_out || 0, own = logs.lines.length - (missing ? logs.lines.filter((at) => run.logs[at][0] === GAP).length : 0);
  document.getElementById("log-count").textContent = missing ? `${own} of ${count(run.logs.length + missing, "line")} are in this file: problems, the first and the last lines` : `${count(own, "line")}${reading() && `, the last ones; ${reading()}`}`;
  logTicks();
  if (logs.follow && !run.now.is_over) logs.box.scrollTop = logs.box.scrollHeight;
  paintLogs();
}

function paintLogs() {
  const first = Math.max(0, Math.floor(logs.box.scrollTop / ROW) - 5), last = Math.min(logs.lines.length, first + Math.ceil(logs.box.clientHeight / ROW) + 10);
  const rows = [];
  for (let at = first; at < last; at += 1) {
    const [rank, line, t, level] = run.logs[logs.lines[at]], longer = line.length - LONGEST;
    const near = Math.max(0.02, Math.min(0.5, (lanes.to - lanes.from) / 20)), isHeld = lanes.pinned && Math.abs(t - lanes.cursor) < near;
    const row = el("div", { class: `line${isHeld ? " held" : ""}${["", " warning", " error"][level]}${rank === GAP ? " gap" : ""}` }, el("span", { class: "who" }, `${t.toFixed(lanes.to - lanes.from < 2 ? 3 : 1).padStart(8)} s  ${nameOf(rank).padEnd(8)}`),
      colored(line.slice(0, LONGEST)), longer > 0 ? el("span", { class: "dim" }, ` … and ${longer} characters`) : null);
    row.style.top = `${at * ROW}px`;
    rows.push(row);
  }
  if (!rows.length) rows.push(el("p", { class: "line dim" }, run.logs.length ? "No line matches." : `No rank has printed anything${run.now.is_over ? "" : " yet"}.`));
  logs.box.replaceChildren(logs.filler, ...rows);
}

// Where errors are, beside the scroll bar.
function logTicks() {
  const errors = logs.lines.filter((at) => run.logs[at][3] === 2), place = document.getElementById("log-ticks"), key = `${errors.length}/${logs.lines.length}`;
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  const rows = new Set(), order = new Map(logs.lines.map((at, row) => [at, row]));
  for (const at of errors) rows.add(Math.round((200 * order.get(at)) / logs.lines.length));
  place.replaceChildren(...[...rows].map((row) => { const tick = el("i"); tick.style.top = `${row / 2}%`; return tick; }));
}

// Scroll to the first line that was printed at a time, or later.
function showLogsAt(t) {
  const at = logs.lines.findIndex((line) => run.logs[line][2] >= t - 0.0005);
  logs.follow = false;
  logs.box.scrollTop = Math.max(0, (at < 0 ? logs.lines.length : at) - 2) * ROW;
  paintLogs();
}

// Text with SGR codes as elements with classes; found words are marked.
function colored(line) {
  let codes = [];
  return line.split(/(\x1b\[[0-9;]*m)/).map((part) => {
    const code = /^\x1b\[([0-9;]*)m$/.exec(part);
    if (code) { for (const each of code[1].split(";")) { codes = each === "" || each === "0" ? [] : [...codes.slice(-3), Number(each)]; } return null; }
    if (!part) return null;
    const at = logs.words ? part.toLowerCase().indexOf(logs.words) : -1;
    const text = at < 0 ? placed(part) : [part.slice(0, at), el("mark", {}, part.slice(at, at + logs.words.length)), part.slice(at + logs.words.length)];
    return codes.length ? el("span", { class: codes.map((each) => `a${each}`).join(" ") }, text) : text;
  });
}
