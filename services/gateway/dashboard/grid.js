// The fleet on a canvas: one cell for each node, in groups. Only what is visible is drawn.

import { conditionOf, LABELS, words } from "./condition.js";
import { number, plural } from "./wording.js";

const SIZES = [[120, 26], [500, 20], [2000, 14], [5000, 10], [Infinity, 8]]; // nodes, cell in pixels
const HEAD_PX = 30;
const BETWEEN_PX = 14;
const FLASH_MS = 1600;
const FRAMES_KEPT_MAX = 240;

export class Grid {
  #fleet; #canvas; #scroll; #space; #tip; #said; #context;
  #groups = []; #cells = []; #places = new Map(); #colors = {};
  #size = 20; #gap = 3; #columns = 1; #width = 0;
  #key = "pool"; #find = ""; #only = "";
  #at = -1; #frame = 0; #layoutDue = true; #flashes = new Map();
  frames = [];

  constructor(fleet, { canvas, scroll, space, tip, said, onOpen }) {
    this.#fleet = fleet;
    Object.assign(this, { onOpen });
    [this.#canvas, this.#scroll, this.#space, this.#tip, this.#said] = [canvas, scroll, space, tip, said];
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
    for (const each of [...Object.keys(LABELS), "surface", "text", "quiet", "focus", "line"]) {
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
    this.#gap = this.#size > 12 ? 3 : this.#size > 8 ? 2 : 1.5;
    this.#width = this.#scroll.clientWidth;
    const pitch = this.#size + this.#gap;
    this.#columns = Math.max(1, Math.floor((this.#width + this.#gap) / pitch));
    this.#groups = [];
    this.#cells = [];
    this.#places = new Map();
    let y = 0;
    for (const [name, nodes] of groups) {
      nodes.sort((a, b) => (a.id < b.id ? -1 : 1));
      const first = this.#cells.length;
      const top = y + HEAD_PX;
      nodes.forEach((node, index) => {
        const cell = {
          node,
          condition: conditionOf(node),
          x: (index % this.#columns) * pitch,
          y: top + Math.floor(index / this.#columns) * pitch,
        };
        this.#cells.push(cell);
        this.#places.set(node.id, cell);
      });
      const healthy = nodes.filter((each) => conditionOf(each) === "healthy").length;
      this.#groups.push({ name, y, first, count: nodes.length, text: `${number(healthy)} of ${plural(nodes.length, "node")} healthy` });
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
    const unhealthy = this.#cells.filter((each) => each.condition === "unhealthy" || each.condition === "lost").length;
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
    context.fillText(group.text, width + 10, group.y + 13, Math.max(60, this.#width - width - 12));
  }

  #cell(cell, now) {
    const context = this.#context;
    const { x, y, condition } = cell;
    const size = this.#size;
    const color = this.#colors[condition];
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
    const left = 1 - (now - since) / FLASH_MS;
    if (left <= 0) this.#flashes.delete(cell.node.id);
    else {
      context.globalAlpha = left;
      this.#ring(cell, this.#colors.text, 2);
      context.globalAlpha = 1;
    }
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
    this.#context.strokeRect(x - 1, y - 1, this.#size + 2, this.#size + 2);
  }

  #cellAt(event) {
    const box = this.#canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top + this.#scroll.scrollTop];
    const pitch = this.#size + this.#gap;
    const group = this.#groups.findLast((each) => each.y <= y);
    if (!group || y < group.y + HEAD_PX) return null;
    const column = Math.floor(x / pitch);
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
