// Changes of a node: the dry run first, with its gates, then the request under one key.

import * as api from "./api.js";
import { byId, fill, h, link, notice, problemNotice } from "./elements.js";
import { number, span } from "./wording.js";

const VERBS = {
  cordon: { title: "Cordon", text: "Places no new work on the node. What runs there goes on." },
  uncordon: { title: "Uncordon", text: "Returns the node to service and resets its health state." },
  drain: { title: "Drain", text: "Cordons the node and waits until its work has left.", waits: true },
  replace: { title: "Replace", text: "Drains the node, launches another and terminates this one.", waits: true, danger: true },
  "reset-gpu": { title: "Reset GPUs of", text: "Drains the node, resets its GPUs, tests it and returns it to service.", waits: true },
  reboot: { title: "Reboot", text: "Drains the node, reboots it, tests it and returns it to service.", waits: true },
};
const MODES = [["", "as the pool is configured"], ["deadline", "deadline: until the timeout"], ["wait", "wait: as long as it takes"], ["immediate", "immediate: do not wait"]];

export const mayChange = (role) => role === "operator" || role === "admin";

export function actionsFor(node, context) {
  if (!mayChange(context.role) || node.status === "terminated") return null;
  const verbs = [node.cordoned ? "uncordon" : "cordon", "drain", "reset-gpu", "reboot", "replace"];
  return h("div", { class: "actions" }, verbs.map((verb) =>
    h("button", { type: "button", "data-verb": verb, onclick: () => openChange(node, verb, context) }, `${VERBS[verb].title.replace(" of", "")}…`)));
}

function gateRow(gate) {
  const [kind, word] = gate.passed ? ["good", "passes"] : gate.automation_only ? ["plain", "waived"] : ["bad", "prevents"];
  return h("li", {}, h("span", { class: `is-${kind}` }, word), h("span", {}, gate.name, gate.detail ? h("span", { class: "quiet" }, `: ${gate.detail}`) : null, kind === "plain" ? h("span", { class: "quiet" }, " (it limits automation alone)") : null));
}

function ownerRow({ owner = "", work = [], total = 0 }) {
  const more = total > work.length ? ` and ${number(total - work.length)} more` : "";
  return h("li", {}, `${owner || "an unnamed owner"}: ${work.join(", ")}${more}`);
}

function planOf(run) {
  const offering = run.offering && [run.offering.instance_type, run.offering.provider, run.offering.region, ...(run.offering.zones ?? [])].join(" ");
  const pivot = run.steps.find((each) => each.final);
  return [
    run.accepted ? notice("good", "It would be accepted.", run.reason) : notice("error", "It would be refused.", run.reason),
    run.gates.length ? [h("h3", {}, "Gates"), h("ul", { class: "gates" }, run.gates.map(gateRow))] : null,
    run.steps.length ? [h("h3", {}, `Steps of the saga ${run.saga}`), h("ol", { class: "steps" }, run.steps.map((each) =>
      h("li", { title: each.deadline_seconds === null ? "no deadline" : `at most ${span(each.deadline_seconds * 1000)}` }, each.step, each === pivot ? " (no way back from here)" : "")))] : null,
    run.drain ? h("p", { class: "quiet" }, `Drain: ${run.drain}`) : null,
    run.owners?.length ? [h("h3", {}, "Ends the work of"), h("ul", {}, run.owners.map(ownerRow))] : null,
    run.owners_unknown ? h("p", { class: "quiet" }, `Whose work it would end is unknown: ${run.owners_unknown}`) : null,
    run.promotes ? h("p", {}, "The spare ", h("code", {}, run.promotes), " replaces it.") : null,
    offering ? h("p", {}, `Would launch: ${offering}`) : null,
    run.leaves ? h("p", { class: "quiet" }, `If it is unwound: ${run.leaves}`) : null,
    run.unavailable_limit ? h("p", { class: "quiet" }, `Out of service in the pool: ${number(run.unavailable)} of ${number(run.unavailable_limit)}`) : null,
  ];
}

function openChange(node, verb, context) {
  const { title, text, waits, danger } = VERBS[verb];
  const dialog = byId("change");
  const key = api.newKey();
  const plan = h("div", { "aria-live": "polite" });
  const reason = h("input", { name: "reason", maxlength: 500, autocomplete: "off", placeholder: "shown in the events" });
  const mode = waits ? h("select", { name: "mode" }, MODES.map(([value, label]) => h("option", { value }, label))) : null;
  const confirm = h("button", { type: "submit", class: danger ? "danger" : "primary", disabled: true }, `${title} ${node.id}`);
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  let turn = 0;

  const body = () => ({ reason: reason.value, ...(mode?.value ? { mode: mode.value } : {}) });

  async function rehearse() {
    const own = (turn += 1);
    confirm.disabled = true;
    fill(plan, h("p", { class: "empty" }, "Asking what it would do…"));
    try {
      const run = await api.changeNode(node.id, verb, body(), { dryRun: true });
      if (own !== turn) return;
      fill(plan, planOf(run));
      confirm.disabled = !run.accepted;
    } catch (error) {
      if (own === turn) fill(plan, problemNotice(error, "There is no dry run"));
    }
  }

  async function send(event) {
    event.preventDefault();
    turn += 1;
    confirm.disabled = true;
    for (const each of [reason, mode]) if (each) each.disabled = true;
    fill(plan, h("p", { class: "empty" }, "Requested; waiting for the answer…"));
    try {
      const answer = await api.changeNode(node.id, verb, body(), { key });
      fill(plan, notice("good", `${title} is accepted.`, answer.note, ""), answer.saga ? h("p", {}, "The saga ", link("saga", answer.saga), " carries it out.") : null);
      confirm.remove();
      cancel.textContent = "Close";
      cancel.focus();
      context.changed();
    } catch (error) {
      const pending = error.status === 202 || error.status === 0;
      fill(plan, pending ? notice("warn", "There is no answer yet.", error.message, "Send it again: it is carried out once.") : problemNotice(error, `${title} is refused`));
      confirm.disabled = !pending;
    }
  }

  mode?.addEventListener("change", rehearse);
  fill(dialog, h("form", { onsubmit: send },
    h("div", {}, h("h2", { id: "change-title" }, `${title} ${node.id}`), h("p", { class: "quiet" }, text)),
    mode ? h("label", {}, "How to wait for the work", mode) : null,
    h("label", {}, "Reason", reason),
    plan,
    h("div", { class: "buttons" }, cancel, confirm)));
  dialog.showModal();
  dialog.onclick = (event) => { if (event.target.closest("a")) dialog.close(); };
  rehearse();
}
