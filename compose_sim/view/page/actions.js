// Act on a running run: the page sends what `composesim fault`, `heal`, `link` and `scale` would send.

const FOR = [["", "until healed"], ["5", "for 5 s"], ["20", "for 20 s"], ["60", "for 60 s"]];
const fault = (kind, node, for_s) => ({ verb: "fault", kind, arguments: [node], for_s: for_s ? Number(for_s) : null });
const faultWords = (kind) => (node, value, time) => `fault ${kind} ${node}${time ? ` --for ${time}s` : ""}`;
const ACTIONS = {  // words, which of the fields it needs, the message that it sends, and the command that does the same
  pause: ["Pause", ["node", "for"], (node, value, time) => fault("pause", node, time), faultWords("pause")],
  kill: ["Kill", ["node", "for"], (node, value, time) => fault("kill", node, time), faultWords("kill")],
  isolate: ["Isolate", ["node", "for"], (node, value, time) => fault("isolate", node, time), faultWords("isolate")],
  link: ["Slow the links of", ["node", "value"], (node, value) => ({ verb: "link", links: [`${node}=${value || "10mbit"}`] }), (node, value) => `link ${node}=${value || "10mbit"}`],
  plain: ["Clear all links", [], () => ({ verb: "link", links: [] }), () => "link"],
  heal: ["Heal", ["node"], (node) => ({ verb: "heal", target: node }), (node) => `heal ${node}`],
  scale: ["Scale to", ["value"], (node, value) => ({ verb: "scale", nodes: Number(value) }), (node, value) => `scale ${value}`],
};

// Where no node can be isolated, there is no network whose links could be shaped.
const canDo = (now, action) => ["heal", "scale"].includes(action) || now.actions.includes(["link", "plain"].includes(action) ? "isolate" : action);

function actionsCard(now) {
  const field = { node: el("select", { "aria-label": "Node" }, Object.keys(now.phases).map((name) => el("option", { value: name }, name))),
    value: el("input", { "aria-label": "Value", size: 14 }), for: el("select", { "aria-label": "Time" }, FOR.map(([value, words]) => el("option", { value }, words))) };
  const result = el("span", { class: "small", id: "action-result", role: "status" });
  const what = el("select", { id: "action", "aria-label": "Action" }, Object.entries(ACTIONS).filter(([value]) => canDo(now, value)).map(([value, [words]]) => el("option", { value }, words)));
  const values = () => [field.node.value, field.value.value.trim(), field.for.value], send = el("button", { id: "act" });
  const name = () => {  // a button says what it does
    const [words, needed] = ACTIONS[what.value], [node, value] = values();
    send.textContent = [words, needed.includes("node") ? node : "", what.value === "scale" ? `${value || "…"} nodes` : ""].filter(Boolean).join(" ");
  };
  const choose = () => {
    for (const [each, element] of Object.entries(field)) element.hidden = !ACTIONS[what.value][1].includes(each);
    field.value.placeholder = what.value === "scale" ? "nodes" : "10mbit";
    Object.assign(field.value, { value: "" });
    field.for.value = "";
    name();
  };
  send.addEventListener("click", async () => {
    const [, , message, command] = ACTIONS[what.value], given = values(), words = send.textContent;
    if (what.value === "kill" && !confirm(`Kill ${given[0]}? Its ranks end at once.`)) return;
    send.disabled = true;
    result.replaceChildren("…");
    try {
      const done = await act(message(...given)), isFault = done.startsWith("fault");
      result.replaceChildren(`${words}: sent. `, isFault ? el("button", { class: "text", onclick: async () => { result.replaceChildren(await act({ verb: "heal", target: done }).then(() => `${words}: undone.`, (error) => error.message)); } }, "Undo") : "", " ", typed(`composesim ${command(...given)} --run ${now.run}`));
      result.dataset.id = done;
    } catch (error) {
      result.replaceChildren(String(error.message));
    }
    send.disabled = false;
  });
  what.addEventListener("change", choose);
  for (const each of Object.values(field)) each.addEventListener("input", name);
  choose();
  return el("div", { class: "card bar", id: "actions", hidden: true }, el("h3", {}, "Act on the run"), what, field.node, field.value, field.for, send, result);
}

// Send an action, and return its id; an answer that refuses it is no error of the network, which the console would show.
async function act(message) {
  const { id, refused } = await (await ask(`/actions?run=${encodeURIComponent(live.shown)}`, undefined, { method: "POST", body: JSON.stringify(message) })).json();
  if (refused) throw new Error(refused);
  return id;
}

// A click on a node chooses it for the next action.
function chooseNode(name) {
  const card = document.getElementById("actions"), box = card.querySelector("[aria-label=Node]");
  if (card.hidden) return;
  box.value = name;
  box.dispatchEvent(new Event("input"));
  document.getElementById("act").focus();
}

function showActions(now) { document.getElementById("actions").hidden = !live.acts || now.is_over; }
