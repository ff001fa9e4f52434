// The panel at the side: one node, pool or saga, by the address: #/node/NAME, #/pool/NAME, #/saga/ID.

import * as api from "./api.js";
import { actionsFor } from "./change.js";
import { LABELS, conditionOf, words } from "./condition.js";
import { badge, facts, fill, h, link, problemNotice } from "./elements.js";
import { costPlots, samplePlots, utilizationPlot } from "./plots.js";
import { limitText, sagaTimeline } from "./overview.js";
import { age, fullTime, number, sentence, span, stamp } from "./wording.js";

const READ_AGAIN_MS = 600;
const POOL_AGAIN_MS = 5000; // its history may be long
const SETTLED_MS = 3000;
const MEASURED_AGAIN_MS = 15_000; // an agent's interval of samples
const LINES_SHOWN = 20;
const OFFERINGS_SHOWN = 50;
const TIME = /^\d{4}-\d\d-\d\dT[\d:.]+Z$/;
const HIDDEN_OF_ENTRY = new Set(["id", "type", "time", "saga", "pool", "cause"]);

const capital = (text) => text[0].toUpperCase() + text.slice(1);
const section = (title, ...children) => (children.flat().some(Boolean) ? [h("h3", {}, title), ...children] : []);

function head(title, kind, name, close) {
  return h("div", { class: "panel-head" },
    h("div", {}, h("span", { class: "quiet" }, kind), h("h2", { id: "panel-title" }, name)),
    h("button", { type: "button", onclick: close, "aria-label": `Close ${title}` }, "Close"));
}

function whySection(why) {
  if (!why) return section("Why", h("p", { class: "quiet" }, "The history is being read…"));
  if (why instanceof Error) return section("Why", problemNotice(why, "Its history cannot be read"));
  return section("Why",
    h("p", { class: "why-summary" }, why.summary),
    why.now.map((each) => h("p", { class: "why-now" }, sentence(each))),
    why.next ? h("p", { class: "quiet" }, `Next: ${why.next}.`) : null,
    why.lines.length ? h("ol", { class: "log" }, why.lines.map((each) => h("li", {}, h("time", { datetime: each.at, title: fullTime(each.at) }, stamp(each.at)), each.text))) : null,
    why.omitted ? h("p", { class: "quiet" }, `${number(why.omitted)} older lines are left out.`) : null,
    why.evidence ? h("p", { class: "quiet" }, "Evidence: ", h("code", {}, why.evidence)) : null);
}

function gpuTile(gpu, index) {
  const details = ["name", "serial", "action", "rule", "reason"].map((key) => gpu[key]).filter(Boolean);
  return h("div", { class: `gpu is-${gpu.health ?? "unknown"}` },
    h("strong", {}, `GPU ${gpu.index ?? index}`), h("div", {}, gpu.health ?? "unknown"), details.map((each) => h("small", {}, String(each))));
}

function evidenceSection(evidence) {
  if (!evidence) return [];
  const lines = evidence.kernel_lines ?? [];
  return section("Evidence",
    facts([
      ["Outage", `${evidence.fault_signature || "unknown"}, ${evidence.outcome}, since ${fullTime(evidence.unhealthy_at)}`],
      ["Restored", fullTime(evidence.restored_at)],
      ["Lost", evidence.lost_gpu_hours ? `${number(Math.round(10 * evidence.lost_gpu_hours) / 10)} GPU-hours` : ""],
      ["Driver", evidence.driver_version],
    ]),
    lines.length ? h("pre", { class: "lines", tabindex: "0", "aria-label": "Kernel lines" }, lines.slice(-LINES_SHOWN).map((each) => `${fullTime(each.time)}  ${each.line}`).join("\n")) : null);
}

// Samples that no longer come are shown with their age.
function oldSamples(samples) {
  const newest = samples.reduce((last, each) => (each.time > last ? each.time : last), "");
  return newest && Date.now() - new Date(newest) > 2 * MEASURED_AGAIN_MS ? h("p", { class: "stale" }, `The newest sample is ${age(newest)} old.`) : null;
}

function nodeView(node, why, timeline, samples, evidence, context) {
  const condition = conditionOf(node);
  return [
    head("the node", "Node", node.id, context.close),
    h("div", { class: "badges" }, badge(condition, LABELS[condition] ?? condition), h("span", { class: "quiet" }, words(node))),
    node.reason && node.health !== "healthy" ? h("p", { class: "notice is-warn" }, node.reason) : null,
    actionsFor(node, context),
    facts([
      ["Pool", link("pool", node.pool)],
      ["Saga", node.saga ? link("saga", node.saga) : ""],
      ["Provider", [node.provider, node.instance_type].filter(Boolean).join(" ")],
      ["Place", [node.region, node.zone, node.rack].filter(Boolean).join(" / ")],
      ["Address", node.address],
      ["Registered", fullTime(node.registered_at)],
      ["Last change", fullTime(node.last_change)],
      ["Last heartbeat", node.last_heartbeat ? `${age(node.last_heartbeat)} ago` : ""],
      ["Job", node.job],
      ["Workload", node.workload],
      ["Held", node.held_until ? `until ${fullTime(node.held_until)} by ${node.held_by}: ${node.held_reason}` : ""],
    ]),
    section("GPUs", node.gpus?.length ? h("div", { class: "gpus" }, node.gpus.map(gpuTile)) : h("p", { class: "quiet" }, "None is reported.")),
    section("Conditions", node.conditions?.length
      ? h("ol", { class: "log" }, node.conditions.map((each) => h("li", { class: each.unknown ? "" : "is-bad" },
        h("time", { datetime: each.since, title: fullTime(each.since) }, stamp(each.since)),
        h("strong", {}, each.name), each.gpu_index >= 0 ? ` on GPU ${each.gpu_index}` : "", each.unknown ? " cannot be read" : "",
        h("div", { class: "quiet mono" }, each.message))))
      : null),
    section("Measured", samples?.length ? [samplePlots(samples), oldSamples(samples)] : null),
    section("Faults", node.health_events?.length
      ? h("ol", { class: "log" }, node.health_events.toReversed().map((each) => h("li", { class: each.result === "unhealthy" ? "is-bad" : "" },
        h("time", { datetime: each.time, title: fullTime(each.time) }, stamp(each.time)),
        h("strong", {}, `${each.kind}${each.code ? ` ${each.code}` : ""}`), each.gpu_index >= 0 ? ` on GPU ${each.gpu_index}` : "", each.result ? ` → ${each.result}` : "", each.rule ? ` (${each.rule})` : "",
        h("div", { class: "quiet mono" }, each.message))))
      : h("p", { class: "quiet" }, "None is kept.")),
    whySection(why),
    evidenceSection(evidence),
    timeline?.length ? section("Timeline", h("ol", { class: "log" }, timeline.toReversed().slice(0, 100).map((row) => h("li", { class: `is-${row.tone}` },
      h("time", { datetime: row.at, title: fullTime(row.at) }, stamp(row.at)), h("strong", {}, row.title), row.saga && row.saga !== row.subject ? [" ", link("saga", row.saga)] : null, row.detail ? h("div", { class: "quiet" }, row.detail) : null)))) : null,
  ];
}

function spent({ dollars, unpriced }) {
  const free = unpriced ? `${dollars ? ", and " : ""}${number(unpriced)} instances without a known price` : "";
  return `Last 24 hours: ${dollars || !unpriced ? `$${number(dollars)}` : ""}${free}`;
}

// What a launch may choose from, and why it may not.
function offeringsTable(offerings) {
  const named = (text) => h("th", { scope: "col" }, text);
  const state = (each) => (each.state === "available" ? badge("good", "available") : [badge(each.state === "exhausted" ? "warn" : "bad", each.state), h("div", { class: "quiet" }, [each.since ? `since ${fullTime(each.since)}` : "", each.reason].filter(Boolean).join(": "))]);
  const rows = offerings.slice(0, OFFERINGS_SHOWN).map((each) => h("tr", {},
    h("th", { scope: "row" }, [each.provider, each.zone || each.region].filter(Boolean).join(" ")),
    h("td", {}, `${each.instance_type}, ${each.market}`),
    h("td", { class: "count" }, each.dollars_per_hour == null ? "unknown" : `$${number(each.dollars_per_hour)}`),
    h("td", {}, state(each))));
  return [
    h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": "Offerings" }, h("table", {},
      h("thead", {}, h("tr", {}, named("Where"), named("What"), h("th", { scope: "col", class: "count" }, "An hour"), named("State"))), h("tbody", {}, rows))),
    offerings.length > OFFERINGS_SHOWN ? h("p", { class: "quiet" }, `${number(offerings.length - OFFERINGS_SHOWN)} more: navarch offerings`) : null,
  ];
}

function poolView(pool, why, { history, status, offerings, use }, context) {
  const nodes = [...context.fleet.nodes.values()].filter((each) => each.pool === pool.name && conditionOf(each) !== "healthy");
  return [
    head("the pool", "Pool", pool.name, context.close),
    h("div", { class: "badges" }, badge(pool.breaker === "closed" ? "good" : "bad", `breaker ${pool.breaker}`), badge("plain", `mode ${pool.mode}`), pool.removing ? badge("warn", "is being removed") : null),
    facts([
      ["Nodes", `${number(pool.nodes)} of ${number(pool.desired)} desired; ${number(pool.min_nodes)} to ${number(pool.max_nodes)} allowed`],
      ["In service", `${number(pool.active)}: ${number(pool.healthy)} healthy, ${number(pool.unhealthy)} unhealthy`],
      ["Utilization", status?.utilization == null ? "not known" : `${number(Math.round(status.utilization))}% of its GPUs, on average`],
      ["Cordoned", number(pool.cordoned)],
      ["Spares", pool.spares ? `${number(pool.spares_ready)} of ${number(pool.spares)} ready` : ""],
      ["Awaiting", pool.awaiting_remediation ? `${number(pool.awaiting_remediation)} unhealthy nodes wait for remediation` : ""],
      ["Out of service", `${limitText(pool.unavailable, pool.unavailable_limit)} at once`],
      ["Replacements", `${limitText(pool.disruptions, pool.disruptions_limit)}${pool.window_seconds ? ` in ${span(pool.window_seconds * 1000)}` : ""}`],
      ["Resets, reboots", limitText(pool.resets, pool.resets_limit)],
      ["Breaker", [pool.breaker_reason, pool.breaker_by].filter(Boolean).join(", ")],
    ]),
    (pool.warnings ?? []).map((each) => h("p", { class: "notice is-warn" }, sentence(each))),
    history ? section(spent(history), costPlots(history)) : null,
    use?.points.length > 1 ? section("Utilization", utilizationPlot(use)) : null,
    pool.open_sagas?.length ? section("Sagas in progress", h("ul", {}, pool.open_sagas.map((each) => h("li", {}, link("saga", each))))) : null,
    nodes.length ? section("Nodes that are not healthy", h("ul", {}, nodes.slice(0, 100).map((each) => h("li", { class: "badges" }, badge(conditionOf(each), LABELS[conditionOf(each)]), link("node", each.id))))) : null,
    whySection(why),
    offerings?.length ? section("What it may launch", offeringsTable(offerings)) : null,
  ];
}

function entryText(entry) {
  const rest = Object.entries(entry).filter(([key, value]) => !HIDDEN_OF_ENTRY.has(key) && ["string", "number", "boolean"].includes(typeof value) && value !== "" && value !== 0 && value !== false);
  const text = (value) => (TIME.test(value) ? fullTime(value) : value);
  return rest.map(([key, value]) => `${key} ${text(value)}`).join(", ");
}

function entryTone(name) {
  if (/failed|stuck|expired|unwinding/.test(name)) return "is-bad";
  return /succeeded|done|undone/.test(name) ? "is-good" : "";
}

function sagaView({ saga, log }, context) {
  return [
    head("the saga", "Saga", saga.saga, context.close),
    h("div", { class: "badges" }, badge({ done: "good", stuck: "bad", unwinding: "warn", unwound: "warn" }[saga.status] ?? "plain", saga.status), badge("plain", saga.kind)),
    sagaTimeline(saga),
    facts([
      ["Pool", link("pool", saga.pool)],
      ["Node", saga.node ? link("node", saga.node) : ""],
      ["New node", saga.new_node ? link("node", saga.new_node) : ""],
      ["Reason", saga.reason],
      ["Waits for", sentence(saga.waiting_for ?? "")],
      ["Since", `${fullTime(saga.since)} (${age(saga.since)})`],
      ["Deadline", fullTime(saga.deadline)],
      ["If unwound", saga.leaves],
    ]),
    section("Log", h("ol", { class: "log" }, log.map((entry) => {
      const name = String(entry.type ?? "entry").split(".").pop().replaceAll("_", " ");
      return h("li", { class: entryTone(name) }, entry.time ? h("time", { datetime: entry.time, title: fullTime(entry.time) }, stamp(entry.time)) : null, h("strong", {}, [entry.step, name].filter(Boolean).join(": ")), h("div", { class: "quiet" }, entryText({ ...entry, step: undefined })));
    }))),
  ];
}

export class Panel {
  #place; #context; #kind = ""; #name = ""; #timer = 0; #settle = 0; #sample = 0; #turn = 0; #reading = 0; #opener = null; #measured = { of: "", at: 0, value: null };

  constructor(place, fleet, role) {
    this.#place = place;
    this.#context = { fleet, role, close: () => { location.hash = "#/"; }, changed: () => this.#soon() };
    fleet.addEventListener("event", ({ detail }) => {
      const saga = this.#kind === "saga" && (detail.view.event.saga === this.#name || (fleet.sagas.get(this.#name)?.pool ?? detail.pool) === detail.pool);
      if (saga || (this.#kind === "node" && detail.nodes.includes(this.#name)) || (this.#kind === "pool" && detail.pool === this.#name)) this.#soon();
    });
    place.addEventListener("keydown", (event) => { if (event.key === "Escape") this.#context.close(); });
  }

  show(kind, name) {
    if (kind === this.#kind && name === this.#name) return;
    if (this.#place.hidden) this.#opener = document.activeElement;
    [this.#kind, this.#name] = [kind, name];
    clearTimeout(this.#timer);
    this.#timer = 0;
    clearTimeout(this.#settle);
    clearTimeout(this.#sample);
    this.#turn += 1;
    this.#place.hidden = !kind;
    if (!kind) return void this.#opener?.focus();
    fill(this.#place, head(`the ${kind}`, capital(kind), name, this.#context.close), h("p", { class: "empty" }, "Reading…"));
    this.#place.scrollTop = 0;
    this.#place.focus();
    this.#read();
  }

  #soon() {
    clearTimeout(this.#settle);
    const wait = this.#kind === "pool" ? POOL_AGAIN_MS : READ_AGAIN_MS;
    if (!this.#timer) this.#timer = setTimeout(() => { this.#timer = 0; this.#readAgain(); }, wait);
    this.#settle = setTimeout(() => this.#readAgain(), SETTLED_MS);
  }

  // One reading at a time: a slow one is shown, and is not replaced by the next before it has ended.
  #readAgain() {
    if (this.#reading === this.#turn) this.#soon();
    else this.#read();
  }

  // What is measured changes less often than the rest, and is larger.
  async #measuredBy(read) {
    const of = `${this.#kind}/${this.#name}`;
    if (this.#measured.of !== of || Date.now() - this.#measured.at > MEASURED_AGAIN_MS) {
      this.#measured = { of, at: Date.now(), value: read(this.#name).catch(() => null) };
    }
    return this.#measured.value;
  }

  async #read() {
    const turn = (this.#turn += 1);
    this.#reading = turn;
    const show = (...children) => {
      if (turn !== this.#turn) return;
      const [top, held] = [this.#place.scrollTop, document.activeElement?.dataset?.verb];
      const inside = this.#place.contains(document.activeElement) && document.activeElement !== this.#place;
      fill(this.#place, ...children);
      this.#place.scrollTop = top;
      if (inside && !this.#place.contains(document.activeElement)) (this.#place.querySelector(held ? `[data-verb="${held}"]` : "button") ?? this.#place).focus();
    };
    const failed = (error) => error;
    try {
      if (this.#kind === "node") {
        const [node, why, timeline, samples] = await Promise.all([api.node(this.#name), api.nodeWhy(this.#name).catch(failed), api.nodeTimeline(this.#name).catch(() => []), this.#measuredBy(api.nodeSamples)]);
        const evidence = why.evidence ? await api.nodeEvidence(this.#name).catch(() => null) : null;
        show(nodeView(node, why, timeline, samples, evidence, this.#context));
      } else if (this.#kind === "pool") {
        const [why, measures] = await Promise.all([api.poolWhy(this.#name), this.#measuredBy(api.poolMeasures)]);
        const pool = this.#context.fleet.pools.get(this.#name);
        if (pool) show(poolView(pool, why, measures ?? {}, this.#context));
      } else {
        show(sagaView(await api.saga(this.#name), this.#context));
      }
    } catch (error) {
      show(head(`the ${this.#kind}`, capital(this.#kind), this.#name, this.#context.close), problemNotice(error, `This ${this.#kind} cannot be shown`));
    }
    if (this.#reading === turn) this.#reading = 0;
    clearTimeout(this.#sample);
    this.#sample = setTimeout(() => this.#readAgain(), MEASURED_AGAIN_MS); // samples, and what waits for a time, change without an event
  }
}
