// Follow a run that composesim view serves. The token comes with the fragment of the address, which browsers send to no server.

const live = { token: null, runs: [], shown: null, reading: null, heard: 0, lost: false, refused: false, acts: false };

async function follow() {
  const given = /^#token=(.+)$/.exec(location.hash);
  if (given) {
    sessionStorage.setItem("token", given[1]);
    history.replaceState(null, "", location.pathname);
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
  watch(live.shown);
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
  const reading = live.reading = new AbortController();
  live.shown = name;
  while (!reading.signal.aborted) {
    try {
      const answer = await ask(`/events?run=${encodeURIComponent(name)}`, reading.signal);
      forget();
      for (const built of [BUILT, logs.lines]) { if (built.clear) built.clear(); else built.length = 0; }
      document.getElementById("main").replaceChildren();
      Object.assign(logs, { taken: 0, rank: "", words: "", level: "" });
      Object.assign(lanes, { fitted: true, cursor: null, pinned: false });
      await messages(answer.body.getReader());
    } catch (error) {
      if (reading.signal.aborted) return;
      reportError(error);
      if (!run.now) notice(String(error.message));
      live.refused = error.status === 401;
    }
    if (run.now && run.now.is_over) { showAge(); return; }
    live.lost = true;
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

async function messages(reader) {
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
    for (const part of parts.filter((each) => each.startsWith("data: "))) take(JSON.parse(part.slice(6)));
    Object.assign(live, { heard: performance.now(), lost: false });
    if (run.now) render();
  }
}

function showAge() {
  const place = document.getElementById("age");
  if (!place || !run.now) return;
  place.textContent = run.now.is_over ? "" : live.refused ? "the page was started again: open the address that it printed" : live.lost ? "disconnected, trying again" : `data is ${((performance.now() - live.heard) / 1000).toFixed(1)} s old`;
}

function runList() {
  if (live.runs.length < 2) return null;
  return el("select", { "aria-label": "Run", onchange: (event) => watch(event.target.value) }, live.runs.map((each) =>
    el("option", { value: each.name, selected: each.name === live.shown }, each.name + (each.is_running ? " (running)" : ""))));
}

function notice(text) { document.getElementById("main").replaceChildren(el("p", { class: "card" }, text)); }
