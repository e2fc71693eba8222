// Act on a running run: the page sends what `composesim fault`, `heal`, `link` and `scale` would send.

const FOR = [["", "until healed"], ["5", "for 5 s"], ["20", "for 20 s"], ["60", "for 60 s"]];
const fault = (kind, node, for_s) => ({ verb: "fault", kind, arguments: [node], for_s: for_s ? Number(for_s) : null });
const ACTIONS = {  // words, which of the fields it needs, and the message that it sends
  pause: ["Pause", ["node", "for"], (node, value, time) => fault("pause", node, time)],
  kill: ["Kill", ["node", "for"], (node, value, time) => fault("kill", node, time)],
  isolate: ["Isolate", ["node", "for"], (node, value, time) => fault("isolate", node, time)],
  link: ["Slow the links of", ["node", "value"], (node, value) => ({ verb: "link", links: [`${node}=${value || "10mbit,20ms"}`] })],
  plain: ["Clear all links", [], () => ({ verb: "link", links: [] })],
  heal: ["Heal", ["node"], (node) => ({ verb: "heal", target: node })],
  scale: ["Scale to", ["value"], (node, value) => ({ verb: "scale", nodes: Number(value) })],
};

function actionsCard(now) {
  const field = { node: el("select", { "aria-label": "Node" }, Object.keys(now.phases).map((name) => el("option", { value: name }, name))),
    value: el("input", { "aria-label": "Value", size: 14 }), for: el("select", { "aria-label": "Time" }, FOR.map(([value, words]) => el("option", { value }, words))) };
  const result = el("span", { class: "small dim", id: "action-result", role: "status" });
  const what = el("select", { id: "action", "aria-label": "Action" }, Object.entries(ACTIONS).map(([value, [words]]) => el("option", { value }, words)));
  const choose = () => {
    for (const [name, each] of Object.entries(field)) each.hidden = !ACTIONS[what.value][1].includes(name);
    field.value.placeholder = what.value === "scale" ? "nodes" : "10mbit,20ms";
  };
  const send = el("button", { id: "act", onclick: async () => {
    send.disabled = true;
    result.textContent = "…";
    try {
      const body = JSON.stringify(ACTIONS[what.value][2](field.node.value, field.value.value.trim(), field.for.value));
      const answer = await ask(`/actions?run=${encodeURIComponent(live.shown)}`, undefined, { method: "POST", body });
      result.textContent = `done: ${(await answer.json()).id}`;
    } catch (error) {
      result.textContent = String(error.message);
    }
    send.disabled = false;
  } }, "Do it");
  what.addEventListener("change", choose);
  choose();
  return el("div", { class: "card bar", id: "actions", hidden: true }, el("h3", {}, "Act on the run"), what, field.node, field.value, field.for, send, result);
}

function showActions(now) { document.getElementById("actions").hidden = !live.acts || now.is_over; }
