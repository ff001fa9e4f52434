// The fleet on a canvas: one cell for each node, in groups. Only what is visible is drawn.

import { conditionOf, LABELS, words, isHealthy, isUnhealthy } from "./condition.js";
import { number, plural } from "./wording.js";

const SIZES = [[60, 40], [300, 26], [600, 20], [2000, 14], [5000, 10], [Infinity, 8]]; // nodes, cell in pixels
const CARD_PX = 184; // of the largest cells, which have room for a name
const HEAD_PX = 30;
const BETWEEN_PX = 14;
const FLASH_MS = 1600;
const FRAMES_KEPT_MAX = 240;

// A name that is too long loses its middle: its end distinguishes it.
function shortened(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  for (let kept = text.length - 2; kept > 4; kept -= 1) {
    const half = Math.floor(kept / 2);
    const found = `${text.slice(0, kept - half)}…${text.slice(-half)}`;
    if (context.measureText(found).width <= room) return found;
  }
  return "…";
}

export class Grid {
  #fleet; #canvas; #scroll; #space; #tip; #said; #empty; #context;
  #groups = []; #cells = []; #places = new Map(); #colors = {};
  #size = 20; #wide = 20; #gap = 3; #columns = 1; #width = 0;
  #key = "pool"; #find = ""; #only = "";
  #at = -1; #frame = 0; #layoutDue = true; #flashes = new Map();
  frames = [];

  constructor(fleet, { canvas, scroll, space, tip, said, empty, onOpen }) {
    this.#fleet = fleet;
    Object.assign(this, { onOpen });
    [this.#canvas, this.#scroll, this.#space, this.#tip, this.#said, this.#empty] = [canvas, scroll, space, tip, said, empty];
    this.#context = canvas.getContext("2d", { alpha: false });
    this.#readColors();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.#readColors(); this.draw(); });
    new ResizeObserver(() => this.layOut()).observe(scroll);
    scroll.addEventListener("scroll", () => this.draw(), { passive: true });
    canvas.addEventListener("pointermove", (event) => this.#point(event));
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    canvas.addEventListener("click", (event) => this.#open(this.#cellAt(event)));
    canvas.addEventListener("keydown", (event) => this.#press(event));
    canvas.addEventListener("focus", () => { if (this.#at < 0 && this.#cells.length) this.#at = 0; this.draw(); });
    canvas.addEventListener("blur", () => this.draw());
  }

  show({ key = this.#key, find = this.#find, only = this.#only }) {
    [this.#key, this.#find, this.#only] = [key, find.toLowerCase(), only];
    this.layOut();
  }

  shown(node) {
    if (this.#only && conditionOf(node) !== this.#only) return false;
    if (!this.#find) return true;
    return [node.id, node.pool, node.zone, node.rack, node.provider, node.instance_type, node.reason, node.job].some((each) => each?.toLowerCase().includes(this.#find));
  }

  // A node's condition changed: its cell alone is drawn again.
  changed(name) {
    const node = this.#fleet.nodes.get(name);
    const place = this.#places.get(name);
    if (!node || !place || !this.shown(node)) return this.layOut();
    const condition = conditionOf(node);
    if (place.condition !== condition) this.#flashes.set(name, performance.now());
    place.group.healthy += isHealthy(node) - isHealthy(place.node);
    place.node = node;
    place.condition = condition;
    this.draw();
  }

  layOut() {
    this.#layoutDue = true;
    this.draw();
  }

  draw() {
    if (!this.#frame) this.#frame = requestAnimationFrame((time) => { this.#frame = 0; this.#render(time); });
  }

  // For tests and for the page's own measurements: what a cell shows.
  cell(name) {
    const found = this.#places.get(name);
    return found && { condition: found.condition, x: found.x, y: found.y, size: this.#size };
  }

  colorAt(name) {
    const found = this.#places.get(name);
    const scale = devicePixelRatio;
    const pixel = this.#context.getImageData((found.x + 3) * scale, (found.y - this.#scroll.scrollTop + 3) * scale, 1, 1).data;
    return Array.from(pixel.slice(0, 3)).join(",");
  }

  #readColors() {
    const style = getComputedStyle(document.documentElement);
    for (const each of [...Object.keys(LABELS), "surface", "text", "quiet", "focus", "line", "raised"]) {
      this.#colors[each] = style.getPropertyValue(`--${each}`).trim();
    }
  }

  #group() {
    const groups = new Map();
    for (const node of this.#fleet.nodes.values()) {
      if (!this.shown(node)) continue;
      const name = (this.#key === "zone" && node.zone ? node.zone : node[this.#key]) || `no ${this.#key}`;
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(node);
    }
    return [...groups].sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true }));
  }

  #layOutNow() {
    this.#layoutDue = false;
    const held = this.#cells[this.#at]?.node.id;
    const groups = this.#group();
    const total = groups.reduce((sum, [, nodes]) => sum + nodes.length, 0);
    this.#size = SIZES.find(([most]) => total <= most)[1];
    this.#wide = this.#size === SIZES[0][1] ? CARD_PX : this.#size;
    this.#gap = this.#wide > this.#size ? 8 : this.#size > 12 ? 3 : this.#size > 8 ? 2 : 1.5;
    this.#width = this.#scroll.clientWidth;
    const pitch = this.#size + this.#gap;
    const across = this.#wide + this.#gap;
    this.#columns = Math.max(1, Math.floor((this.#width + this.#gap) / across));
    this.#groups = [];
    this.#cells = [];
    this.#places = new Map();
    let y = 0;
    for (const [name, nodes] of groups) {
      nodes.sort((a, b) => (a.id < b.id ? -1 : 1));
      const first = this.#cells.length;
      const top = y + HEAD_PX;
      const group = { name, y, first, count: nodes.length, healthy: 0 };
      this.#groups.push(group);
      nodes.forEach((node, index) => {
        const cell = {
          node,
          group,
          condition: conditionOf(node),
          x: (index % this.#columns) * across,
          y: top + Math.floor(index / this.#columns) * pitch,
        };
        group.healthy += isHealthy(node);
        this.#cells.push(cell);
        this.#places.set(node.id, cell);
      });
      y = top + Math.ceil(nodes.length / this.#columns) * pitch + BETWEEN_PX;
    }
    this.#at = held === undefined ? -1 : this.#cells.indexOf(this.#places.get(held));
    const height = Math.max(0, y - BETWEEN_PX);
    this.#space.style.height = `${height}px`;
    const visible = Math.min(height, this.#scroll.clientHeight || height);
    const scale = devicePixelRatio;
    const [wide, high] = [Math.round(this.#width * scale), Math.max(1, Math.round(visible * scale))];
    if (this.#canvas.width !== wide || this.#canvas.height !== high) Object.assign(this.#canvas, { width: wide, height: high });
    this.#canvas.style.width = `${this.#width}px`;
    this.#canvas.style.height = `${visible}px`;
    this.#space.style.marginTop = `-${visible}px`;
    const unhealthy = this.#cells.filter((each) => isUnhealthy(each.node)).length;
    this.#canvas.hidden = !total;
    this.#empty.hidden = total > 0;
    this.#empty.textContent = this.#fleet.nodes.size ? "No node matches." : this.#fleet.ready ? "The fleet has no node yet." : "Reading the fleet…";
    this.#canvas.setAttribute("aria-label", `${plural(total, "node")}, ${number(unhealthy)} unhealthy or lost`);
  }

  #render(time) {
    const started = performance.now();
    if (this.#layoutDue) this.#layOutNow();
    const context = this.#context;
    const scale = devicePixelRatio;
    const top = this.#scroll.scrollTop;
    const bottom = top + this.#canvas.height / scale;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.fillStyle = this.#colors.surface;
    context.fillRect(0, 0, this.#width, bottom - top);
    context.translate(0, -top);
    for (const group of this.#groups) {
      const end = this.#cells[group.first + group.count - 1].y + this.#size;
      if (end < top || group.y > bottom) continue;
      this.#head(group);
      const pitch = this.#size + this.#gap;
      const row = Math.max(0, Math.floor((top - group.y - HEAD_PX) / pitch));
      const last = Math.min(group.count, (Math.ceil((bottom - group.y - HEAD_PX) / pitch) + 1) * this.#columns);
      for (let index = row * this.#columns; index < last; index += 1) this.#cell(this.#cells[group.first + index], started);
    }
    if (document.activeElement === this.#canvas && this.#cells[this.#at]) this.#ring(this.#cells[this.#at], this.#colors.focus, 2);
    this.frames.push({ at: time, took: performance.now() - started });
    if (this.frames.length > FRAMES_KEPT_MAX) this.frames.shift();
    for (const [name, since] of this.#flashes) if (started - since > FLASH_MS) this.#flashes.delete(name);
    if (this.#flashes.size) this.draw();
  }

  #head(group) {
    const context = this.#context;
    context.textBaseline = "middle";
    context.font = "600 13px system-ui, sans-serif";
    context.fillStyle = this.#colors.text;
    const name = group.name.length > 48 ? `${group.name.slice(0, 47)}…` : group.name;
    context.fillText(name, 0, group.y + 13);
    const width = context.measureText(name).width;
    context.font = "13px system-ui, sans-serif";
    context.fillStyle = this.#colors.quiet;
    const text = `${number(group.healthy)} of ${plural(group.count, "node")} healthy`;
    context.fillText(text, width + 10, group.y + 13, Math.max(60, this.#width - width - 12));
  }

  #cell(cell, now) {
    const context = this.#context;
    const { x, y, condition } = cell;
    const size = this.#size;
    const color = this.#colors[condition];
    if (this.#wide > size) this.#card(cell);
    context.fillStyle = color;
    if (size < 14) {
      context.fillRect(x, y, size, size);
    } else {
      context.beginPath();
      context.roundRect(x, y, size, size, size / 6);
      if (condition === "launching" || condition === "spare") {
        context.globalAlpha = 0.2;
        context.fill();
        context.globalAlpha = 1;
        context.strokeStyle = color;
        context.lineWidth = 1.5;
        context.stroke();
      } else context.fill();
    }
    if (size >= 10) this.#mark(cell);
    const since = this.#flashes.get(cell.node.id);
    if (since === undefined) return;
    context.globalAlpha = Math.min(1, Math.max(0, 1 - (now - since) / FLASH_MS));
    this.#ring(cell, this.#colors.text, 2);
    context.globalAlpha = 1;
  }

  // A large cell has its node's name and condition beside the colour.
  #card({ x, y, node, condition }) {
    const context = this.#context;
    context.fillStyle = this.#colors.raised;
    context.strokeStyle = this.#colors.line;
    context.lineWidth = 1;
    context.beginPath();
    context.roundRect(x + 0.5, y + 0.5, this.#wide - 1, this.#size - 1, 7);
    context.fill();
    context.stroke();
    const room = this.#wide - this.#size - 16;
    context.textBaseline = "middle";
    context.fillStyle = this.#colors.text;
    context.font = "600 12.5px system-ui, sans-serif";
    context.fillText(shortened(context, node.id, room), x + this.#size + 9, y + 13);
    context.fillStyle = this.#colors.quiet;
    context.font = "12px system-ui, sans-serif";
    const text = [LABELS[condition], node.gpu_count ? plural(node.gpu_count, "GPU") : ""].filter(Boolean).join(", ");
    context.fillText(shortened(context, text, room), x + this.#size + 9, y + 28);
  }

  // A mark besides the colour, for eyes that do not distinguish red and green.
  #mark({ x, y, condition, node }) {
    const context = this.#context;
    const size = this.#size;
    const inset = size * 0.3;
    context.strokeStyle = this.#colors.surface;
    context.lineWidth = Math.max(1.5, size / 11);
    context.beginPath();
    if (condition === "unhealthy") {
      context.moveTo(x + inset, y + inset);
      context.lineTo(x + size - inset, y + size - inset);
      context.moveTo(x + size - inset, y + inset);
      context.lineTo(x + inset, y + size - inset);
    } else if (condition === "lost") {
      context.arc(x + size / 2, y + size / 2, size / 2 - inset, 0, 7);
    } else if (condition === "cordoned" || (node.cordoned && condition !== "spare")) {
      context.moveTo(x + inset, y + size / 2);
      context.lineTo(x + size - inset, y + size / 2);
    } else if (condition === "degraded") {
      context.moveTo(x + size / 2, y + inset);
      context.lineTo(x + size / 2, y + size - inset);
    } else if (condition === "leaving") {
      context.moveTo(x + inset, y + size - inset);
      context.lineTo(x + size - inset, y + inset);
    } else return;
    context.stroke();
  }

  #ring({ x, y }, color, width) {
    this.#context.strokeStyle = color;
    this.#context.lineWidth = width;
    this.#context.strokeRect(x - 1, y - 1, this.#wide + 2, this.#size + 2);
  }

  #cellAt(event) {
    const box = this.#canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top + this.#scroll.scrollTop];
    const pitch = this.#size + this.#gap;
    const group = this.#groups.findLast((each) => each.y <= y);
    if (!group || y < group.y + HEAD_PX) return null;
    const column = Math.floor(x / (this.#wide + this.#gap));
    const index = Math.floor((y - group.y - HEAD_PX) / pitch) * this.#columns + column;
    return column < this.#columns && index < group.count ? this.#cells[group.first + index] : null;
  }

  #point(event) {
    const cell = this.#cellAt(event);
    this.#tip.hidden = !cell;
    this.#canvas.style.cursor = cell ? "pointer" : "default";
    if (!cell) return;
    const { node } = cell;
    this.#tip.textContent = `${node.id} · ${words(node)}${node.zone ? ` · ${node.zone}` : ""}${node.reason ? `\n${node.reason}` : ""}`;
    const left = Math.min(event.clientX + 14, innerWidth - this.#tip.offsetWidth - 8);
    const over = event.clientY + 18 + this.#tip.offsetHeight > innerHeight;
    this.#tip.style.left = `${Math.max(8, left)}px`;
    this.#tip.style.top = `${over ? event.clientY - this.#tip.offsetHeight - 10 : event.clientY + 18}px`;
  }

  #open(cell) {
    if (!cell) return;
    this.#at = this.#cells.indexOf(cell);
    this.#tip.hidden = true;
    this.onOpen(cell.node.id);
  }

  #press(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.#columns, ArrowDown: this.#columns, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.#open(this.#cells[this.#at]);
    } else if (event.key in moves && this.#cells.length) {
      event.preventDefault();
      this.#at = Math.min(this.#cells.length - 1, Math.max(0, this.#at + moves[event.key]));
      const cell = this.#cells[this.#at];
      const top = this.#scroll.scrollTop;
      const visible = this.#scroll.clientHeight;
      if (cell.y - HEAD_PX < top) this.#scroll.scrollTop = cell.y - HEAD_PX;
      else if (cell.y + this.#size > top + visible) this.#scroll.scrollTop = cell.y + this.#size + 4 - visible;
      this.#said.textContent = `${cell.node.id}: ${LABELS[cell.condition]}, pool ${cell.node.pool}${cell.node.reason ? `, ${cell.node.reason}` : ""}`;
      this.draw();
    }
  }
}
