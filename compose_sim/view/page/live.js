// Follow a run that composesim view serves. The token comes with the fragment of the address, which browsers send to no server.

const live = { token: null, runs: [], shown: null, reading: null, heard: 0, lost: false, refused: false, acts: false };

async function follow() {
  const { token } = readPlace();
  if (token) {
    sessionStorage.setItem("token", token);
    keepPlace({});
  }
  live.token = sessionStorage.getItem("token");
  if (!live.token) { notice("Open the address that composesim view printed: its last part is the token."); return; }
  setInterval(showAge, 500);
  try {
    const listed = await (await ask("/runs")).json();
    Object.assign(live, { runs: listed.runs, shown: listed.shown, acts: !listed.read_only });
  } catch (error) {
    notice(String(error.message));
    return;
  }
  const { run: wanted } = readPlace();
  watch(live.runs.some((each) => each.name === wanted) ? wanted : live.shown);
}

async function ask(path, signal, more = {}) {
  const headers = { Authorization: `Bearer ${live.token}`, ...(more.body ? { "Content-Type": "application/json" } : {}) };
  const answer = await fetch(path, { headers, signal, ...more });
  if (!answer.ok) throw Object.assign(new Error((await answer.text()).trim()), { status: answer.status });
  return answer;
}

// Read the messages of one run until it is over; connect again if the connection ends before.
async function watch(name) {
  if (live.reading) live.reading.abort();
  const reading = live.reading = new AbortController(), before = run.now && run.now.run;
  live.shown = name;
  while (!reading.signal.aborted) {
    try {
      const answer = await ask(`/events?run=${encodeURIComponent(name)}`, reading.signal);
      clear();
      if (before && before !== name) keepPlace({ run: name, t: null, rank: null }); else keepPlace({ run: name });
      await messages(answer.body.getReader());
    } catch (error) {
      if (reading.signal.aborted) return;
      reportError(error);
      live.refused = error.status === 401;
      if (!run.now) notice(String(error.message));
      else if (run.now.run !== name) {  // what is shown belongs to the run before, and stays that
        live.shown = run.now.run;
        BUILT.delete("head");  // its list shows the other one
        render();
        banner(`'${name}' cannot be read: the page's server does not answer. Start it again:`, `composesim view ${name}`);
        return;
      }
    }
    if (run.now && run.now.is_over) { showAge(); return; }
    live.lost = true;
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

// Forget the run that was shown.
function clear() {
  forget();
  for (const built of [BUILT, logs.lines]) { if (built.clear) built.clear(); else built.length = 0; }
  document.getElementById("main").replaceChildren();
  banner("");
  Object.assign(logs, { taken: 0, rank: "", words: "", level: "" });
  Object.assign(lanes, { fitted: true, cursor: null, pinned: false, path: false, rank: null });
  Object.assign(live, { restored: false, drawn: 0 });
}

function banner(text, command) {
  const place = document.getElementById("banner");
  place.hidden = !text;
  if (place.dataset.text === `${text}${command}`) return;
  place.dataset.text = `${text}${command}`;
  place.replaceChildren(text, " ", command ? typed(command) : "");
}

// The messages of a run, as many at a time as have arrived.
async function* received(reader) {
  const decoder = new TextDecoder();
  let rest = [];  // pieces of a message that may have a hundred megabytes: they are joined once, at its end
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const piece = decoder.decode(value, { stream: true });
    rest.push(piece);
    if (!piece.includes("\n")) continue;
    const parts = rest.join("").split("\n\n");
    rest = [parts.pop()];
    yield parts.filter((each) => each.startsWith("data: ")).map((each) => JSON.parse(each.slice(6)));
  }
}

async function messages(reader) {
  for await (const some of received(reader)) {
    for (const each of some) take(each);
    Object.assign(live, { heard: performance.now(), lost: false });
    if (run.now && !document.hidden) renderOnce();
  }
}

// Show a message; nothing is drawn while nobody looks.
function renderOnce() {
  render();
  if (!live.restored) { live.restored = true; restorePlace(); }
}

document.addEventListener("visibilitychange", () => { if (!document.hidden && run.now && live.token) renderOnce(); });


function showAge() {
  const place = document.getElementById("age");
  if (!place || !run.now) return;
  const ago = (performance.now() - live.heard) / 1000, isOld = live.lost && !run.now.is_over && ago > 3;
  place.textContent = run.now.is_over ? reading() : live.refused ? "the page was started again: open the address that it printed" : live.lost ? "disconnected, trying again" : `data is ${ago.toFixed(0)} s old`;
  const pill = document.querySelector("#nav .pill");
  if (!isOld || !pill) return;
  pill.className = "pill";
  pill.textContent = `? last seen running ${Math.round(ago)} s ago`;
  BUILT.delete("nav");
  banner("The page's server does not answer: the run may go on, or be over. Start it again:", `composesim view ${run.now.run}`);
}

const reading = () => (run.now.reading_bytes ? `reading ${bytes(run.now.reading_bytes)} of logs…` : "");

function runList() {
  if (live.runs.length < 2) return null;
  const choose = (label, shown, names, act) => el("select", { "aria-label": label, onchange: (event) => act(event.target.value) }, names.map(([value, words]) => el("option", { value, selected: value === shown }, words)));
  return [choose("Run", live.shown, live.runs.map((each) => [each.name, each.name + (each.is_running ? " (running)" : "")]), watch), " ",
    choose("Compare with", compared.other ? compared.other.now.run : "", [["", "compare with …"], ...live.runs.filter((each) => each.name !== live.shown && !each.is_running).map((each) => [each.name, `compare with ${each.name}`])], compareWith)];
}

function notice(text) { document.getElementById("main").replaceChildren(el("p", { class: "card" }, text)); }
