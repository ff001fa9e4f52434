// The card of events: a page of the stored ones, the newest first, by filters; the first page is live.

import * as api from "./api.js";
import { fill, h, link, problemNotice } from "./elements.js";
import { clock, fullTime, number, plural, stamp } from "./wording.js";

const PAGE_SIZE = 100;
const FINDS_MAX = 12; // requests for one page, where matching events are far apart
const NAMED_MAX = 3;
const TOUCHED = ["node", "new_node", "old_node", "gone"];

export function eventRow(view) {
  const { node, pool, saga } = view.event;
  const about = node ? link("node", node) : saga ? link("saga", saga) : pool ? link("pool", pool) : h("span", { class: "name" }, view.about);
  const of = pool && (node || saga) ? [" in ", link("pool", pool)] : null;
  return h("div", { class: `event is-${view.tone}`, "data-sequence": view.sequence },
    h("time", { datetime: view.time, title: fullTime(view.time) }, stamp(view.time)),
    h("div", {}, h("span", { class: "title" }, view.title), h("span", { class: "about" }, about, of), view.detail ? h("div", { class: "detail" }, view.detail) : null));
}

export class EventList {
  #place; #form; #pager; #fleet; #views = []; #starts = [0]; #next = 0; #more = false; #turn = 0;
  #loading = false; #problem = null; #waiting = []; #unseen = 0; #asked = {}; #drawn = "";
  #kinds = new Set();

  constructor(fleet, { place, form, pager }) {
    [this.#fleet, this.#place, this.#form, this.#pager] = [fleet, place, form, pager];
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", () => this.load());
    fleet.addEventListener("event", ({ detail }) => this.#arrived(detail.view));
    fleet.addEventListener("summary", () => this.#showPools());
  }

  // From the newest on; `loaded` of the fleet calls it, and a changed filter.
  load() {
    this.#starts = [0];
    return this.#read();
  }

  #older() {
    this.#starts.push(this.#next);
    return this.#read();
  }

  #newer() {
    this.#starts.pop();
    return this.#read();
  }

  get #isFirst() {
    return this.#starts.length === 1;
  }

  #filters() {
    const given = Object.fromEntries(new FormData(this.#form));
    const node = given.node.trim();
    const until = given.until ? `${given.until}:00Z`.replace(/(:\d\d:\d\d):00Z$/, "$1Z") : "";
    return { pool: given.pool, kind: given.kind.trim(), tone: given.tone, since: given.since, until, ...this.#nodeOf(node) };
  }

  // A beginning is enough where one node begins so; a name of no node may be that of a former one.
  #nodeOf(text) {
    if (!text || this.#fleet.nodes.has(text)) return { node: text };
    const found = [];
    for (const name of this.#fleet.nodes.keys()) if (name.startsWith(text)) found.push(name);
    if (found.length < 2) return { node: found[0] ?? text };
    const named = found.slice(0, NAMED_MAX).join(", ");
    return { node: "", unclear: `${plural(found.length, "node")} begin with ${text}: ${named}${found.length > NAMED_MAX ? ", …" : ""}. Write one name.` };
  }

  async #read() {
    const turn = (this.#turn += 1);
    const filters = this.#filters();
    [this.#asked, this.#views, this.#waiting, this.#problem, this.#loading, this.#more, this.#unseen] = [filters, [], [], null, !filters.unclear, false, 0];
    this.#announce();
    if (filters.unclear) return;
    let before = this.#starts.at(-1);
    try {
      for (let number = 0; number < FINDS_MAX && this.#views.length < PAGE_SIZE; number += 1) {
        const page = await api.newestEvents({ ...filters, before, limit: PAGE_SIZE - this.#views.length });
        if (turn !== this.#turn) return;
        this.#views.push(...page.items);
        [before, this.#next, this.#more] = [page.next, page.next, page.more];
        if (!page.more) break;
        this.#announce();
      }
    } catch (error) {
      if (turn !== this.#turn) return;
      this.#problem = error;
    }
    this.#loading = false;
    for (const each of this.#views) this.#kinds.add(each.kind);
    for (const each of this.#waiting.splice(0)) this.#add(each);
    this.#announce();
  }

  #matches({ kind, tone, event }) {
    const asked = this.#asked;
    const named = () => TOUCHED.some((key) => event[key] === asked.node || event[key]?.includes?.(asked.node)) || event.nodes?.includes?.(asked.node);
    return !asked.unclear && !asked.until && (!asked.pool || event.pool === asked.pool) && (!asked.kind || kind === asked.kind) && (!asked.tone || tone === asked.tone) && (!asked.node || named());
  }

  #arrived(view) {
    this.#kinds.add(view.kind);
    if (!this.#matches(view)) return;
    if (!this.#isFirst) this.#unseen += 1;
    else if (this.#loading) this.#waiting.push(view);
    else this.#add(view);
    this.#announce();
  }

  #add(view) {
    if (view.sequence <= (this.#views[0]?.sequence ?? 0)) return;
    this.#views.unshift(view);
    if (this.#views.length <= PAGE_SIZE) return;
    this.#views.length = PAGE_SIZE;
    [this.#next, this.#more] = [this.#views.at(-1).sequence, true];
  }

  #announce() {
    this.#fleet.dispatchEvent(new CustomEvent("events"));
  }

  #showPools() {
    const select = this.#form.elements.pool;
    const names = [...this.#fleet.pools.keys()];
    if (select.dataset.names === names.join()) return;
    select.dataset.names = names.join();
    const chosen = select.value;
    fill(select, h("option", { value: "" }, "every pool"), names.map((name) => h("option", { value: name }, name)));
    select.value = names.includes(chosen) ? chosen : "";
  }

  #words() {
    const views = this.#views;
    if (!views.length) return "";
    const span = `${clock(views.at(-1).time)} to ${clock(views[0].time)}`;
    if (this.#isFirst) return this.#asked.until ? span : `Live, ${span}`;
    return `Page ${number(this.#starts.length)}, ${span}${this.#unseen ? `; ${plural(this.#unseen, "newer event")}` : ""}`;
  }

  show() {
    const state = this.#loading ? h("p", { class: "empty" }, "Reading the events…") : this.#asked.unclear ? h("p", { class: "empty" }, this.#asked.unclear) : this.#problem ? problemNotice(this.#problem, "The events cannot be read") : null;
    const older = h("button", { type: "button", "data-page": "older", disabled: !this.#more || this.#loading, onclick: () => this.#older() }, "Older");
    const newer = h("button", { type: "button", "data-page": "newer", disabled: this.#isFirst, onclick: () => this.#newer() }, "Newer");
    const first = h("button", { type: "button", "data-page": "newest", disabled: this.#isFirst, onclick: () => this.load() }, "Newest");
    const held = this.#pager.contains(document.activeElement) ? document.activeElement.dataset.page : "";
    fill(this.#pager, h("span", { class: "quiet" }, this.#words()), first, newer, older);
    if (held) this.#pager.querySelector(`[data-page="${held}"]:not(:disabled)`)?.focus();
    fill(this.#form.querySelector("datalist"), [...this.#kinds].sort().map((value) => h("option", { value })));
    const newest = this.#views[0]?.sequence ?? 0;
    const drawn = `${this.#turn}`;
    const top = Number(this.#place.querySelector(".event")?.dataset.sequence ?? 0);
    if (state || !newest || drawn !== this.#drawn || !top) {
      const nothing = this.#more ? "Nothing that matches was found so far; Older looks further back." : "No event matches.";
      fill(this.#place, state, this.#views.map(eventRow), !state && !newest ? h("p", { class: "empty" }, nothing) : null);
    } else {
      this.#place.prepend(...this.#views.filter((view) => view.sequence > top).map(eventRow));
      while (this.#place.childElementCount > PAGE_SIZE) this.#place.lastElementChild.remove();
    }
    this.#drawn = state ? "" : drawn;
  }
}
