// The page's lists: numbers, what needs attention, pools, sagas, events, nodes as a table.

import { CONDITIONS, LABELS, conditionOf } from "./condition.js";
import { badge, fill, h, link, notice } from "./elements.js";
import { age, clock, fullTime, number, plural, sentence, span } from "./wording.js";

const ROWS_SHOWN = 200;
const ATTENTION_MAX = 8;

export function countsOf(nodes) {
  const counts = Object.fromEntries(CONDITIONS.map(([name]) => [name, 0]));
  for (const each of nodes) counts[conditionOf(each)] += 1;
  return counts;
}

function tile(title, value, detail = "", kind = "") {
  return h("dl", { class: `tile ${kind ? `is-${kind}` : ""}`, "data-tile": title }, h("dt", {}, title), h("dd", {}, value, detail ? h("small", {}, ` ${detail}`) : null));
}

const READING = (what) => h("p", { class: "empty" }, `Reading ${what}…`);

// The sums of the pools' numbers, as `navarch status` shows them; what is degraded or lost, as `navarch list`.
export function sumsOf(fleet) {
  const sums = { nodes: 0, active: 0, healthy: 0, unhealthy: 0, cordoned: 0, sagas: 0 };
  for (const pool of fleet.pools.values()) {
    for (const key of ["nodes", "active", "healthy", "unhealthy", "cordoned"]) sums[key] += pool[key];
    sums.sagas += pool.open_sagas?.length ?? 0;
  }
  let [degraded, lost, gpus] = [0, 0, 0];
  for (const each of fleet.nodes.values()) {
    degraded += each.health === "degraded";
    lost += Boolean(each.lost);
    gpus += each.gpu_count || 0;
  }
  return { ...sums, degraded, lost, gpus };
}

export function showSummary(place, fleet) {
  if (!fleet.ready) return fill(place, READING(fleet.read ? `the fleet: ${plural(fleet.read, "node")} so far` : "the fleet"));
  const sums = sumsOf(fleet);
  const { budget } = fleet;
  const health = !sums.nodes ? "" : sums.unhealthy ? "" : "good";
  fill(
    place,
    tile("Nodes", number(sums.nodes), plural(sums.gpus, "GPU")),
    tile("In service", number(sums.active)),
    tile("Healthy", number(sums.healthy), sums.nodes ? `${Math.floor((100 * sums.healthy) / sums.nodes)}%` : "", health),
    tile("Unhealthy", number(sums.unhealthy), sums.lost ? `${number(sums.lost)} of them lost` : "", sums.unhealthy ? "bad" : ""),
    tile("Degraded", number(sums.degraded), "", sums.degraded ? "warn" : ""),
    tile("Cordoned", number(sums.cordoned)),
    tile("Sagas", number(sums.sagas), "in progress"),
    budget && !budget.lifted ? tile("Out of service", number(budget.unavailable), `of ${number(budget.unavailable_limit)} at once`) : null,
  );
}

function showAlert(record) {
  const alert = record.opened;
  const about = alert.node ? link("node", alert.node) : alert.pool ? link("pool", alert.pool) : null;
  const of = alert.node && alert.pool ? [" in pool ", link("pool", alert.pool)] : null;
  const taken = alert.acknowledged_by ? `; acknowledged by ${alert.acknowledged_by}` : "";
  const silent = alert.silenced_until && new Date(alert.silenced_until) > Date.now() ? `; silent until ${fullTime(alert.silenced_until)} by ${alert.silenced_by}` : "";
  const given = alert.assigned_to ? `; assigned to ${alert.assigned_to}` : "";
  return notice(alert.severity === "critical" ? "error" : "warn", h("span", {}, `${alert.severity}: ${alert.title}`, about ? " (" : null, about, of, about ? ")" : null), sentence(alert.text), `${alert.key}, since ${fullTime(alert.since || alert.time)} (${age(alert.since || alert.time)})${taken}${given}${silent}`);
}

export function showAttention(place, fleet) {
  const found = [];
  for (const each of fleet.status?.failures ?? []) found.push(notice("error", each.about, sentence(`${each.reason}; ${each.remedy}`)));
  for (const each of fleet.alerts) if (each.opened && each.opened.severity !== "info") found.push(showAlert(each));
  for (const pool of fleet.pools.values()) {
    if (pool.breaker !== "closed") {
      found.push(notice("error", h("span", {}, `Breaker ${pool.breaker} in pool `, link("pool", pool.name)), [pool.breaker_reason, pool.breaker_by && `by ${pool.breaker_by}`, pool.breaker_since && `since ${fullTime(pool.breaker_since)}`].filter(Boolean).join(", "), pool.breaker === "open" ? "No remediation starts in this pool until it closes." : "One probe is under way; if it goes well, the breaker closes."));
    }
    for (const warning of pool.warnings ?? []) found.push(notice("warn", h("span", {}, "Pool ", link("pool", pool.name)), sentence(warning)));
  }
  for (const each of fleet.incidents) {
    found.push(notice("warn", h("span", {}, `Incident ${each.signature} in pool `, link("pool", each.pool)), `${plural(each.nodes, "node")} in ${each.scope} ${each.within}, since ${fullTime(each.since)}, last at ${clock(each.last)}${each.released ? "; released by an operator" : ""}`));
  }
  for (const each of fleet.sagas.values()) {
    if (each.status === "stuck") found.push(notice("error", h("span", {}, "Saga ", link("saga", each.saga), " is stuck"), `It waits for ${each.waiting_for}.`));
  }
  const more = found.length - ATTENTION_MAX;
  fill(place, found.slice(0, ATTENTION_MAX), more > 0 ? notice("warn", `${plural(more, "further notice")}`) : null);
}

export function showLegend(place, fleet, only, choose) {
  const counts = countsOf(fleet.nodes.values());
  const held = document.activeElement?.dataset?.condition;
  fill(place, CONDITIONS.filter(([name]) => counts[name] || name === only).map(([name, label]) =>
    h("li", {}, h("button", { type: "button", "data-condition": name, "aria-pressed": String(name === only), onclick: () => choose(name === only ? "" : name) },
      h("span", { class: `swatch is-${name}` }), label))));
  if (held) place.querySelector(`[data-condition="${held}"]`)?.focus();
}

export function showNodeTable(place, nodes, total) {
  if (!nodes.length) return fill(place, h("p", { class: "empty" }, total ? "No node matches." : "The fleet has no node."));
  const rank = Object.fromEntries(CONDITIONS.map(([name], index) => [name, index]));
  const sorted = nodes.toSorted((a, b) => rank[conditionOf(a)] - rank[conditionOf(b)] || (a.id < b.id ? -1 : 1));
  const rows = sorted.slice(0, ROWS_SHOWN).map((node) => h("tr", {},
    h("th", { scope: "row" }, link("node", node.id)),
    h("td", {}, badge(conditionOf(node), LABELS[conditionOf(node)])),
    h("td", {}, link("pool", node.pool)),
    h("td", {}, [node.provider, node.zone || node.region].filter(Boolean).join(" ")),
    h("td", { class: "count" }, number(node.gpu_count || 0)),
    h("td", {}, node.health === "healthy" ? "" : node.reason || "")));
  const head = ["Node", "Condition", "Pool", "Where"].map((each) => h("th", { scope: "col" }, each));
  fill(place,
    h("table", {}, h("thead", {}, h("tr", {}, head, h("th", { scope: "col", class: "count" }, "GPUs"), h("th", { scope: "col" }, "Reason"))), h("tbody", {}, rows)),
    sorted.length > rows.length ? h("p", { class: "empty" }, `${number(rows.length)} of ${number(sorted.length)} are shown, the most urgent first. Find narrows them.`) : null);
}

function poolBar(pool, counts) {
  const whole = Math.max(pool.desired, pool.nodes, 1);
  const bar = h("div", { class: "bar", "aria-hidden": "true" });
  for (const [condition] of CONDITIONS.toReversed()) {
    if (!counts[condition]) continue;
    const part = h("span", { class: `swatch is-${condition}` });
    part.style.width = `${(100 * counts[condition]) / whole}%`;
    bar.append(part);
  }
  return bar;
}

function countsByPool(fleet) {
  const members = new Map();
  for (const each of fleet.nodes.values()) {
    if (!members.has(each.pool)) members.set(each.pool, []);
    members.get(each.pool).push(each);
  }
  return (name) => countsOf(members.get(name) ?? []);
}

export const limitText = (used, limit) => `${number(used)} of ${limit < 0 ? "any number" : number(limit)}`;

export function showPools(place, fleet) {
  const pools = [...fleet.pools.values()];
  if (!fleet.summaryRead) return fill(place, READING("the pools"));
  if (!pools.length) return fill(place, h("p", { class: "empty" }, "There is no pool. Add one under ", h("code", {}, "pools:"), " in the configuration."));
  const countsOfPool = countsByPool(fleet);
  const rows = pools.map((pool) => [pool, countsOfPool(pool.name)]).map(([pool, counts]) => h("tr", { "data-pool": pool.name },
    h("th", { scope: "row" }, link("pool", pool.name), pool.removing ? h("span", { class: "quiet" }, " is being removed") : null, pool.mode === "observe" ? h("span", { class: "quiet" }, " observe") : null),
    h("td", {}, poolBar(pool, counts)),
    h("td", { class: "count" }, `${number(pool.nodes)} of ${number(pool.desired)}`),
    h("td", { class: "count" }, number(pool.active)),
    h("td", { class: "count" }, number(pool.healthy)),
    h("td", { class: "count" }, number(pool.unhealthy)),
    h("td", { class: "count" }, number(pool.cordoned)),
    h("td", { class: "count" }, `${number(pool.min_nodes)} to ${number(pool.max_nodes)}`),
    h("td", {}, badge(pool.breaker === "closed" ? "good" : "bad", pool.breaker)),
    h("td", { class: "count" }, limitText(pool.unavailable, pool.unavailable_limit))));
  const counted = (text) => h("th", { scope: "col", class: "count" }, text);
  const named = (text) => h("th", { scope: "col" }, text);
  fill(place, h("table", {},
    h("thead", {}, h("tr", {}, named("Pool"), named("Health"), counted("Nodes"), counted("In service"), counted("Healthy"), counted("Unhealthy"), counted("Cordoned"), counted("Limits"), named("Breaker"), counted("Out of service"))),
    h("tbody", {}, rows)));
}

// The steps as a timeline; a part's width grows with the time that its step took.
export function sagaTimeline(saga) {
  const steps = saga.steps ?? [];
  if (!steps.length) return null;
  const undone = ["undo-started", "undone", "undo-failed"];
  const parts = steps.map((each) => {
    const took = each.started_at ? new Date(each.ended_at ?? Date.now()) - new Date(each.started_at) : 0;
    const kind = each.status === "succeeded" ? "done" : each.status === "started" ? "now" : each.status === "pending" ? "pending" : undone.includes(each.status) ? "undone" : "failed";
    const part = h("li", { class: `is-${kind}`, "aria-current": kind === "now" ? "step" : null },
      h("span", { class: "track" }),
      h("span", { class: "step" }, each.step),
      h("span", { class: "took" }, each.started_at ? span(took) : "", kind === "done" || kind === "now" || kind === "pending" ? null : ` ${each.status}`));
    part.style.flexGrow = String(1 + Math.log2(1 + took / 1000));
    return part;
  });
  return h("ol", { class: "timeline" }, parts);
}

export function showSagas(place, fleet) {
  const sagas = [...fleet.sagas.values()];
  if (!fleet.summaryRead) return fill(place, READING("the sagas"));
  if (!sagas.length) return fill(place, h("p", { class: "empty" }, "None."));
  fill(place, sagas.slice(0, 50).map((saga) => h("div", { class: "saga" },
    h("div", { class: "line" }, h("strong", {}, link("saga", saga.saga, saga.kind)), h("span", { class: "quiet" }, age(saga.since))),
    h("div", {}, saga.node ? link("node", saga.node) : link("pool", saga.pool), saga.new_node ? [" → ", link("node", saga.new_node)] : null),
    sagaTimeline(saga),
    saga.waiting_for ? h("p", { class: "quiet" }, `waits for ${sentence(saga.waiting_for)}`) : null)),
    sagas.length > 50 ? h("p", { class: "empty" }, `and ${number(sagas.length - 50)} more`) : null);
}
