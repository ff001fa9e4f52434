// Starts the page: sign-in, the first reading, the events, and what follows the address.

import * as api from "./api.js";
import { Bars, showAges } from "./bars.js";
import { isUnhealthy } from "./condition.js";
import { byId, fill, h, problemNotice } from "./elements.js";
import { EventList } from "./events.js";
import { Fleet } from "./fleet.js";
import { Grid } from "./grid.js";
import { showAttention, showLegend, showNodeTable, showPools, showSagas, showSummary } from "./overview.js";
import { Panel } from "./panel.js";
import { follow } from "./stream.js";

const LISTS_APART_MS = 250;
const AGES_MS = 1_000;
const RELOAD_MS = 3_000;

const fleet = new Fleet();
let stop = null;
let panel = null;
const bars = new Bars(byId("bars"), byId("head"));
const events = new EventList(fleet, { place: byId("events"), form: byId("event-filters"), pager: byId("event-pager") });
let grid = null;
let only = "";
let asTable = false;
let shown = "";
const lists = { due: new Set(), timer: 0, at: 0 };

// Lists are written at most four times a second; the grid draws at once.
function soon(...names) {
  for (const each of names) lists.due.add(each);
  if (lists.timer) return;
  lists.timer = setTimeout(() => {
    lists.timer = 0;
    lists.at = performance.now();
    const due = new Set(lists.due);
    lists.due.clear();
    for (const each of due) WRITERS[each]();
  }, Math.max(0, lists.at + LISTS_APART_MS - performance.now()));
}

const WRITERS = {
  summary: () => { showSummary(byId("summary"), fleet); title(); },
  attention: () => showAttention(byId("attention"), fleet),
  legend: () => showLegend(byId("legend"), fleet, only, choose),
  pools: () => showPools(byId("pools"), fleet),
  sagas: () => showSagas(byId("sagas"), fleet),
  events: () => events.show(),
  table: () => asTable && showNodeTable(byId("node-table"), [...fleet.nodes.values()].filter((each) => grid.shown(each)), fleet.nodes.size),
};
const OF_NODES = ["summary", "legend", "table", "pools"];
const OF_SUMMARY = ["summary", "attention", "pools", "sagas"];

function choose(condition) {
  only = condition;
  grid.show({ only });
  soon("legend", "table");
}

function lost(why, seconds) {
  linkState("lost", "Connection lost");
  bars.lost(fleet.source("stream").at || Date.now(), why, seconds);
}

function linkState(kind, text) {
  if (kind === "live") bars.found();
  byId("main").classList.toggle("is-stale", kind === "lost");
  const place = byId("link-state");
  place.className = `link-state ${kind ? `is-${kind}` : ""}`;
  if (place.textContent !== text) place.textContent = text;
}

function route() {
  const [, kind = "", name = ""] = /^#\/(node|pool|saga)\/([^/]+)$/.exec(location.hash) ?? [];
  let known = name;
  try { known = decodeURIComponent(name); } catch { /* as it is written */ }
  panel?.show(kind, known);
  shown = kind ? known : "";
  title();
}

function title() {
  const bad = [...fleet.nodes.values()].filter(isUnhealthy).length;
  document.title = [bad ? `(${bad})` : "", shown ? `${shown} ·` : "", "Navarch"].filter(Boolean).join(" ");
}

async function load() {
  linkState("", "Reading the fleet…");
  byId("main").setAttribute("aria-busy", "true");
  try {
    await fleet.load();
    linkState("live", "Live");
  } catch (error) {
    if (error.status !== 401) lost(`The fleet cannot be read: ${error.message}`, RELOAD_MS / 1000);
    throw error;
  } finally {
    byId("main").setAttribute("aria-busy", "false");
  }
}

function start(caller) {
  byId("sign-in").hidden = true;
  byId("main").hidden = false;
  byId("caller").hidden = false;
  byId("caller-name").textContent = `${caller.name}, ${caller.role}`;
  byId("sign-out").hidden = !api.hasToken();
  fleet.ofSomePools = caller.pools.length > 0;
  panel = new Panel(byId("panel"), fleet, caller.role);
  grid ??= new Grid(fleet, {
    canvas: byId("grid"), scroll: byId("grid-scroll"), space: byId("grid-space"), tip: byId("grid-tip"), said: byId("grid-said"),
    empty: byId("grid-empty"),
    onOpen: (name) => { location.hash = `#/node/${encodeURIComponent(name)}`; },
  });
  document.documentElement.dashboard = { grid, fleet };
  let queue = [];
  let loading = false;
  const loaded = async () => {
    if (loading) return;
    loading = true;
    queue = [];
    try { await load(); } catch { loading = false; return void setTimeout(() => stop && loaded(), RELOAD_MS); }
    loading = false;
    for (const each of queue.splice(0)) fleet.apply(each);
  };
  stop = follow({
    connected: (gap) => { if (gap || !fleet.ready) loaded(); else linkState("live", "Live"); },
    reset: () => { fleet.forgetEvents(); loaded(); },
    event: (view) => { if (loading) queue.push(view); else fleet.apply(view); },
    alive: () => fleet.alive(),
    lost: (error, seconds) => lost(error?.message && error.name !== "AbortError" ? `${error.message.replace(/\.$/, "")}.` : "", seconds),
  });
  route();
}

fleet.addEventListener("loaded", () => { grid.layOut(); soon(...Object.keys(WRITERS)); events.load(); });
fleet.addEventListener("reading", () => soon("summary"));
fleet.addEventListener("status", () => { bars.stops(fleet.status.stop_lines ?? []); soon("attention"); });
fleet.addEventListener("members", () => { grid.layOut(); soon(...OF_NODES); });
fleet.addEventListener("node", ({ detail }) => { grid.changed(detail.node); soon(...OF_NODES); });
fleet.addEventListener("summary", () => soon(...OF_SUMMARY));
fleet.addEventListener("events", () => soon("events"));
setInterval(() => {
  if (!stop) return;
  fleet.tick();
  showAges(fleet);
  if (fleet.sagas.size) soon("sagas");
}, AGES_MS);
addEventListener("hashchange", route);

byId("group-by").addEventListener("change", (event) => grid.show({ key: event.target.value }));
byId("find").addEventListener("input", (event) => { grid.show({ find: event.target.value.trim() }); soon("table"); });
byId("skip").addEventListener("click", (event) => { event.preventDefault(); byId("main").focus(); });
byId("as-table").addEventListener("click", () => {
  asTable = !asTable;
  byId("as-table").setAttribute("aria-pressed", String(asTable));
  byId("grid-scroll").hidden = asTable;
  byId("node-table").hidden = !asTable;
  soon("table");
});

function signIn(problem) {
  stop?.();
  stop = null;
  api.useToken("");
  byId("main").hidden = true;
  byId("panel").hidden = true;
  byId("caller").hidden = true;
  byId("change").close();
  byId("sign-in").hidden = false;
  linkState("", "");
  bars.found();
  bars.stops([]);
  fill(byId("sign-in-error"), problem ? problemNotice(problem, "You are signed out") : null);
  byId("token").focus();
}

byId("sign-in-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = byId("token");
  api.useToken(field.value.trim());
  try {
    await api.caller();
    field.value = "";
    location.reload();
  } catch (error) {
    api.useToken("");
    fill(byId("sign-in-error"), problemNotice(error, "This token cannot be used"));
    field.select();
  }
});
byId("sign-out").addEventListener("click", () => { api.useToken(""); location.reload(); });

async function begin() {
  try {
    const caller = await api.caller();
    api.onSignedOut(({ detail }) => signIn(detail));
    start(caller);
  } catch (error) {
    if (error.status === 401) return signIn(api.hasToken() ? error : null);
    byId("main").hidden = false;
    fill(byId("attention"), problemNotice(error, "The gateway does not answer"), h("button", { type: "button", onclick: () => location.reload() }, "Try again"));
  }
}

begin();
