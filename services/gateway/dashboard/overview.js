// The page's lists: numbers, what needs attention, pools, sagas, events, nodes as a table.

import { CONDITIONS, LABELS, conditionOf } from "./condition.js";
import { badge, fill, h, link, notice } from "./elements.js";
import { age, clock, fullTime, number, plural, span } from "./wording.js";

const EVENTS_SHOWN = 150;
const ROWS_SHOWN = 200;
const ATTENTION_MAX = 8;

export function countsOf(nodes) {
  const counts = Object.fromEntries(CONDITIONS.map(([name]) => [name, 0]));
  for (const each of nodes) counts[conditionOf(each)] += 1;
  return counts;
}

function tile(title, value, detail = "", kind = "") {
  return h("dl", { class: `tile ${kind ? `is-${kind}` : ""}` }, h("dt", {}, title), h("dd", {}, value, detail ? h("small", {}, ` ${detail}`) : null));
}

export function showSummary(place, fleet) {
  const counts = countsOf(fleet.nodes.values());
  const bad = counts.unhealthy + counts.lost;
  const gpus = [...fleet.nodes.values()].reduce((sum, each) => sum + (each.gpu_count || 0), 0);
  const { budget } = fleet;
  fill(
    place,
    tile("Nodes", number(fleet.nodes.size), plural(gpus, "GPU")),
    tile("Healthy", number(counts.healthy), fleet.nodes.size ? `${Math.floor((100 * counts.healthy) / fleet.nodes.size)}%` : "", bad ? "" : "good"),
    tile("Unhealthy or lost", number(bad), "", bad ? "bad" : ""),
    tile("Degraded", number(counts.degraded), "", counts.degraded ? "warn" : ""),
    tile("Cordoned", number(counts.cordoned)),
    tile("Launching, leaving", number(counts.launching + counts.leaving)),
    tile("Sagas", number(fleet.sagas.size), "in progress"),
    budget && !budget.lifted ? tile("Out of service", number(budget.unavailable), `of ${number(budget.unavailable_limit)} at once`) : null,
  );
}

export function showAttention(place, fleet) {
  const found = [];
  for (const pool of fleet.pools.values()) {
    if (pool.breaker !== "closed") {
      found.push(notice("error", h("span", {}, `Breaker ${pool.breaker} in pool `, link("pool", pool.name)), [pool.breaker_reason, pool.breaker_by && `by ${pool.breaker_by}`, pool.breaker_since && `since ${fullTime(pool.breaker_since)}`].filter(Boolean).join(", "), pool.breaker === "open" ? "No remediation starts in this pool until it closes." : "One probe is under way; if it goes well, the breaker closes."));
    }
    for (const warning of pool.warnings ?? []) found.push(notice("warn", h("span", {}, "Pool ", link("pool", pool.name)), warning));
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
      h("span", { class: `swatch is-${name}` }), label, h("b", {}, number(counts[name]))))));
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
  if (!pools.length) return fill(place, h("p", { class: "empty" }, "There is no pool. Add one under ", h("code", {}, "pools:"), " in the configuration."));
  const countsOfPool = countsByPool(fleet);
  const rows = pools.map((pool) => [pool, countsOfPool(pool.name)]).map(([pool, counts]) => h("tr", {},
    h("th", { scope: "row" }, link("pool", pool.name), pool.removing ? h("span", { class: "quiet" }, " is being removed") : null, pool.mode === "observe" ? h("span", { class: "quiet" }, " observe") : null),
    h("td", {}, poolBar(pool, counts)),
    h("td", { class: "count" }, `${number(pool.nodes)} of ${number(pool.desired)}`),
    h("td", { class: "count" }, number(counts.healthy)),
    h("td", { class: "count" }, number(counts.unhealthy + counts.lost)),
    h("td", { class: "count" }, number(counts.cordoned)),
    h("td", { class: "count" }, `${number(pool.min_nodes)} to ${number(pool.max_nodes)}`),
    h("td", {}, badge(pool.breaker === "closed" ? "good" : "bad", pool.breaker)),
    h("td", { class: "count" }, limitText(pool.unavailable, pool.unavailable_limit))));
  const counted = (text) => h("th", { scope: "col", class: "count" }, text);
  const named = (text) => h("th", { scope: "col" }, text);
  fill(place, h("table", {},
    h("thead", {}, h("tr", {}, named("Pool"), named("Health"), counted("Nodes"), counted("Healthy"), counted("Unhealthy"), counted("Cordoned"), counted("Limits"), named("Breaker"), counted("Out of service"))),
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
  if (!sagas.length) return fill(place, h("p", { class: "empty" }, "None."));
  fill(place, sagas.slice(0, 50).map((saga) => h("div", { class: "saga" },
    h("div", { class: "line" }, h("strong", {}, link("saga", saga.saga, saga.kind)), h("span", { class: "quiet" }, age(saga.since))),
    h("div", {}, saga.node ? link("node", saga.node) : link("pool", saga.pool), saga.new_node ? [" → ", link("node", saga.new_node)] : null),
    sagaTimeline(saga),
    saga.waiting_for ? h("p", { class: "quiet" }, `waits for ${saga.waiting_for}`) : null)),
    sagas.length > 50 ? h("p", { class: "empty" }, `and ${number(sagas.length - 50)} more`) : null);
}

export function eventRow(view) {
  const { node, pool, saga } = view.event;
  const about = node ? link("node", node) : saga ? link("saga", saga) : pool ? link("pool", pool) : h("span", { class: "name" }, view.about);
  return h("div", { class: `event is-${view.tone}` },
    h("time", { datetime: view.time, title: fullTime(view.time) }, clock(view.time)),
    h("div", {}, h("span", { class: "title" }, view.title), h("span", { class: "about" }, about), view.detail ? h("div", { class: "detail" }, view.detail) : null));
}

let listed = { find: "", newest: 0, oldest: 0 };

// New events come before the others, which stay where they are; another filter writes all again.
export function showEvents(place, fleet, find) {
  const wanted = find.toLowerCase();
  const matches = (view) => !wanted || [view.kind, view.about, view.title, view.detail].some((each) => each.toLowerCase().includes(wanted));
  const found = fleet.events.filter(matches).slice(-EVENTS_SHOWN).reverse();
  const oldest = fleet.events[0]?.sequence ?? 0;
  const same = listed.find === wanted && listed.oldest <= oldest && place.querySelector(".event");
  if (!found.length) fill(place, h("p", { class: "empty" }, wanted ? "No event matches." : "Nothing happened in the last 15 minutes."));
  else if (!same) fill(place, found.map(eventRow));
  else {
    place.prepend(...found.filter((view) => view.sequence > listed.newest).map(eventRow));
    while (place.childElementCount > EVENTS_SHOWN) place.lastElementChild.remove();
  }
  listed = { find: wanted, newest: fleet.events.at(-1)?.sequence ?? 0, oldest };
}
