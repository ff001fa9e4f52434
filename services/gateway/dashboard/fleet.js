// The fleet as this page has it: read once, then kept current by events.

import * as api from "./api.js";
import { changeOf } from "./condition.js";

const EVENTS_MAX = 500;
const READ_AGAIN_MS = 400;
const SETTLED_MS = 2500;
const TRUST_MS = 2000;
const AT_ONCE_MAX = 4;
const SINGLE_MAX = 20;
const LISTS_APART_MS = 5000;
const SUMMARY_MS = 300;
const SUMMARIES_APART_MS = 1500;
const STATUS_MS = 15_000; // also the interval of the stream's signs of life
const FAILED_AGAIN_MS = 5000;
const OF_STATUS = new Set(["automation-stopped", "service-failure", "order-answered"]);

const GROUPS = ["pool", "zone", "provider", "rack", "region", "job"];
const SHOWN = ["status", "health", "cordoned", "quarantined", "spare", "drained", "lost", "gpu_count", "reason"];

export class Fleet extends EventTarget {
  nodes = new Map();
  pools = new Map();
  sagas = new Map();
  incidents = [];
  budget = null;
  status = null; // as `navarch status` shows it
  alerts = [];
  events = []; // those that arrived, not those of before
  ready = false;
  read = 0; // nodes so far, while the fleet is read
  ofSomePools = false;

  #said = new Map(); // node -> what events say of it, until its record says so too
  #due = new Map(); // node -> when it is to be read
  #timer = 0;
  #summary = { timer: 0, again: 0, running: false, wanted: false, at: 0 };
  #reading = false;
  #listed = 0; // when whole pools were read instead of single nodes
  #load = 0;
  #readAt = { stream: 0, summary: 0, status: 0 };
  #statusRunning = false;
  #statusWanted = false;
  #behind = 0; // since when nodes could not be read

  async load() {
    const load = (this.#load += 1);
    this.read = 0;
    const [nodes] = await Promise.all([this.#allNodes(), this.#readSummary(), this.#readStatus()]);
    if (load !== this.#load) return;
    this.nodes = nodes;
    this.#behind = 0;
    this.alive();
    this.ready = true;
    this.#announce("loaded");
  }

  async #allNodes() {
    const found = new Map();
    for await (const items of api.nodePages()) {
      for (const each of items) found.set(each.id, this.#withSaid(each));
      this.read = found.size;
      this.#announce("reading");
    }
    return found;
  }

  // When a source was last read, and how often it is.
  source(name) {
    const at = name === "nodes" ? this.#behind || this.#readAt.stream : this.#readAt[name];
    return { at, interval: STATUS_MS };
  }

  #keep(items) {
    const known = new Set(this.events.map((each) => each.sequence));
    const fresh = items.filter((each) => !known.has(each.sequence));
    if (!fresh.length) return;
    this.events = [...this.events, ...fresh].sort((a, b) => a.sequence - b.sequence).slice(-EVENTS_MAX);
  }

  get summaryRead() {
    return this.#readAt.summary > 0;
  }

  // The events were set back: those of before have other sequences.
  forgetEvents() {
    this.events = [];
  }

  apply(view) {
    this.#keep([view]);
    const { kind, event } = view;
    this.#readAt.stream = Date.now();
    if (OF_STATUS.has(kind)) this.#statusNow();
    const touched = [event.node, event.new_node, event.old_node].filter(Boolean);
    const change = event.node ? changeOf(kind, event) : null;
    if (change) this.#say(event, change, view);
    for (const each of touched) this.#readSoon(each);
    this.#summarySoon();
    this.dispatchEvent(new CustomEvent("event", { detail: { view, nodes: touched, pool: event.pool || "" } }));
  }

  // A sign of life of the stream.
  alive() {
    this.#readAt.stream = Date.now();
  }

  // What changes without an event is read again at intervals.
  tick() {
    if (!this.ready) return;
    const due = (name) => Date.now() - this.#readAt[name] >= STATUS_MS;
    if (due("summary")) this.#summaryNow();
    if (due("status")) this.#statusNow();
  }

  #say(event, change, view) {
    const said = this.#said.get(event.node);
    this.#said.set(event.node, { fields: { ...said?.fields, ...change }, until: Date.now() + TRUST_MS });
    const known = this.nodes.get(event.node) ?? { id: event.node, pool: event.pool, status: "registered", health: "unknown" };
    this.#set({ ...known, ...change, last_change: view.time });
  }

  #withSaid(node) {
    const said = this.#said.get(node.id);
    if (!said) return node;
    if (Date.now() < said.until) return { ...node, ...said.fields };
    this.#said.delete(node.id);
    return node;
  }

  #set(node) {
    if (node.status === "terminated") {
      const was = this.nodes.get(node.id);
      if (was && this.nodes.delete(node.id)) this.#announce("members", { node: node.id });
      return;
    }
    const before = this.nodes.get(node.id);
    this.nodes.set(node.id, node);
    const differs = (keys) => !before || keys.some((key) => (before[key] || "") !== (node[key] || ""));
    if (differs(GROUPS)) this.#announce("members", { node: node.id });
    else if (differs(SHOWN)) this.#announce("node", { node: node.id });
  }

  #readSoon(node) {
    const now = Date.now();
    this.#due.set(node, { at: Math.min(this.#due.get(node)?.at ?? Infinity, now + READ_AGAIN_MS), settle: now + SETTLED_MS });
    this.#arm();
  }

  // Many nodes at once are read as whole pools, and not often: their events say already what changed.
  get #isWave() {
    return this.#due.size > SINGLE_MAX;
  }

  #arm() {
    if (this.#timer || this.#reading || !this.#due.size) return;
    const next = Math.min(...[...this.#due.values()].map((each) => each.at));
    const at = this.#isWave ? Math.max(next, this.#listed + LISTS_APART_MS) : next;
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.#readDue();
    }, Math.max(50, at - Date.now()));
  }

  async #readDue() {
    const now = Date.now();
    const wave = this.#isWave;
    if (wave && this.#listed + LISTS_APART_MS > now) return this.#arm();
    const due = [...this.#due].filter(([, each]) => wave || each.at <= now);
    for (const [node, { settle }] of due) {
      if (settle > now) this.#due.set(node, { at: settle, settle: 0 });
      else this.#due.delete(node);
    }
    const names = due.map(([node]) => node);
    this.#reading = true;
    try {
      await (wave ? this.#readPools(names) : this.#readEach(names));
      this.#behind = 0;
    } catch {
      this.#behind ||= now;
      for (const node of names) this.#due.set(node, { at: Date.now() + FAILED_AGAIN_MS, settle: Date.now() + FAILED_AGAIN_MS });
    }
    if (wave) this.#listed = Date.now();
    this.#reading = false;
    this.#arm();
  }

  async #readEach(names) {
    const rest = [...names];
    const work = async () => {
      while (rest.length) {
        const node = rest.shift();
        try {
          this.#set(this.#withSaid(await api.node(node)));
        } catch (error) {
          if (error.status !== 404) throw error;
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE_MAX }, work));
  }

  async #readPools(names) {
    const pools = new Set(names.map((each) => this.nodes.get(each)?.pool ?? ""));
    for (const pool of pools.has("") ? [""] : pools) {
      const found = new Set();
      for await (const items of api.nodePages(pool)) {
        for (const each of items) {
          found.add(each.id);
          this.#set(this.#withSaid(each));
        }
      }
      for (const [id, each] of [...this.nodes]) {
        if ((!pool || each.pool === pool) && !found.has(id) && !this.#said.has(id)) this.#set({ ...each, status: "terminated" });
      }
    }
  }

  #summarySoon() {
    const state = this.#summary;
    clearTimeout(state.again);
    state.again = setTimeout(() => this.#summaryNow(), SETTLED_MS);
    const wait = Math.max(SUMMARY_MS, state.at + SUMMARIES_APART_MS - Date.now());
    if (!state.timer) state.timer = setTimeout(() => this.#summaryNow(), wait);
  }

  async #summaryNow() {
    const state = this.#summary;
    clearTimeout(state.timer);
    state.timer = 0;
    if (state.running) return void (state.wanted = true);
    state.running = true;
    state.at = Date.now();
    try {
      await this.#readSummary();
    } catch { /* the next event reads again */ }
    state.running = false;
    if (state.wanted) {
      state.wanted = false;
      this.#summarySoon();
    }
  }

  async #readSummary() {
    const [pools, sagas, incidents, budget] = await Promise.all([
      api.pools(),
      api.sagas(),
      api.incidents(),
      this.ofSomePools ? null : api.budget(), // the budget is the whole fleet's
    ]);
    this.pools = new Map(pools.map((each) => [each.name, each]));
    this.sagas = new Map(sagas.map((each) => [each.saga, each]));
    this.incidents = incidents;
    this.budget = budget;
    this.#readAt.summary = Date.now();
    this.#announce("summary");
  }

  async #statusNow() {
    if (this.#statusRunning) return void (this.#statusWanted = true);
    this.#statusRunning = true;
    this.#statusWanted = false;
    try { await this.#readStatus(); } catch { /* its age is shown */ }
    this.#statusRunning = false;
    if (this.#statusWanted) this.#statusNow();
  }

  async #readStatus() {
    const [status, alerts] = await Promise.all([api.status(), api.alerts()]);
    [this.status, this.alerts] = [status, alerts];
    this.#readAt.status = Date.now();
    this.#announce("status");
  }

  #announce(name, detail = {}) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}
