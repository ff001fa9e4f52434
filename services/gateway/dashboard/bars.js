// What is shown across the page in every view: a lost connection, and what operators have stopped.

import { fill, h } from "./elements.js";
import { clock, span } from "./wording.js";

export class Bars {
  #place; #lost = null; #stops = [];

  // `head` is what stays at the top; the page's panel begins below it.
  constructor(place, head) {
    this.#place = place;
    new ResizeObserver(() => document.documentElement.style.setProperty("--head", `${head.offsetHeight}px`)).observe(head);
  }

  lost(since, why, seconds) {
    this.#lost = { since, why, seconds };
    this.#show();
  }

  found() {
    if (!this.#lost) return;
    this.#lost = null;
    this.#show();
  }

  stops(lines) {
    if (lines.join("\n") === this.#stops.join("\n")) return;
    this.#stops = lines;
    this.#show();
  }

  #show() {
    const lost = this.#lost;
    const text = lost && `What is shown is from before ${clock(new Date(lost.since).toISOString())} UTC, and may have changed. ${lost.why} Next attempt in ${span(lost.seconds * 1000)}.`;
    fill(this.#place,
      lost ? h("div", { class: "bar-across is-lost", role: "alert" }, h("strong", {}, "Connection lost."), ` ${text}`) : null,
      this.#stops.map((line) => h("div", { class: "bar-across is-stop", role: "status" }, line)));
  }
}

// Writes beside a title how old its content is, where that is more than its source's interval.
export function showAges(fleet, now = Date.now()) {
  for (const place of document.querySelectorAll("[data-source]")) {
    const { at, interval } = fleet.source(place.dataset.source);
    const text = at && now - at > 2 * interval ? `${place.dataset.what ?? ""}${span(now - at)} old` : "";
    if (place.textContent !== text) place.textContent = text;
  }
}
