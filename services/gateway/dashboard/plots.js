// Small plots of measured values over time, as SVG. Their text says what they show.

import { h } from "./elements.js";
import { clock, fullTime, number } from "./wording.js";

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, EDGE] = [240, 64, 3];
const HALF_A_DAY_MS = 43_200_000;

function svg(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  return made;
}

const rounded = (value) => number(Math.abs(value) < 10 ? Math.round(value * 100) / 100 : Math.round(value));

function newest(lines, unit) {
  const values = lines.map((each) => each.at(-1)[1]);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  return least === most ? `${rounded(most)} ${unit}` : `${rounded(least)} to ${rounded(most)} ${unit}`;
}

// Each line is a list of [milliseconds, value]; `step`: a value holds until the next.
export function plot(title, unit, lines, { ceiling = 0, step = false } = {}) {
  const drawn = lines.filter((each) => each.length > 1);
  if (!drawn.length) return null;
  const points = drawn.flat();
  const [first, last] = [Math.min(...points.map(([at]) => at)), Math.max(...points.map(([at]) => at))];
  const top = Math.max(ceiling, ...points.map(([, value]) => value)) || 1;
  const x = (at) => (EDGE + ((WIDTH - 2 * EDGE) * (at - first)) / (last - first || 1)).toFixed(1);
  const y = (value) => (HEIGHT - EDGE - ((HEIGHT - 2 * EDGE) * Math.max(value, 0)) / top).toFixed(1);
  const text = newest(drawn, unit);
  const from = (last - first > HALF_A_DAY_MS ? fullTime : clock)(new Date(first).toISOString());
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title} since ${from}: now ${text}, at most ${rounded(Math.max(...points.map(([, value]) => value)))} ${unit}` });
  for (const line of drawn) {
    const path = line.map(([at, value], index) => (index === 0 ? `M${x(at)} ${y(value)}` : step ? `H${x(at)}V${y(value)}` : `L${x(at)} ${y(value)}`)).join("");
    picture.append(svg("path", { d: path, class: "line" }));
  }
  return h("figure", { class: "plot" }, h("figcaption", {}, title, h("b", {}, text)), picture, h("small", { class: "quiet" }, `since ${from}, to ${rounded(top)} ${unit}`));
}

const READINGS = [
  ["Utilization", "%", 100, (gpu) => gpu.utilization_percent],
  ["Memory", "%", 100, (gpu) => (gpu.memory_total_bytes ? (100 * gpu.memory_used_bytes) / gpu.memory_total_bytes : null)],
  ["Temperature", "°C", 100, (gpu) => gpu.temperature_celsius],
  ["Power", "W", 0, (gpu) => gpu.power_watts],
];

// A line for each GPU.
export function samplePlots(samples) {
  const drawn = READINGS.map(([title, unit, ceiling, read]) => {
    const lines = new Map();
    for (const sample of samples) {
      for (const gpu of sample.gpus) {
        const value = read(gpu);
        if (!Number.isFinite(value)) continue;
        if (!lines.has(gpu.index)) lines.set(gpu.index, []);
        lines.get(gpu.index).push([Date.parse(sample.time), value]);
      }
    }
    return plot(title, unit, [...lines.values()], { ceiling });
  }).filter(Boolean);
  return drawn.length ? h("div", { class: "plots" }, drawn) : null;
}

export function costPlots(history) {
  const line = (read) => [[...history.points.map((each) => [Date.parse(each.time), read(each)]), [Date.parse(history.until), read(history.points.at(-1))]]];
  if (!history.points.length) return null;
  return h("div", { class: "plots" }, plot("Instances", "running", line((each) => each.instances), { step: true }), history.dollars ? plot("Cost", "$/h", line((each) => each.dollars_per_hour), { step: true }) : null);
}

export function utilizationPlot({ nodes, sampled, points }) {
  const title = sampled < nodes ? `${number(sampled)} of ${number(nodes)} nodes` : "All nodes";
  return h("div", { class: "plots" }, plot(title, "%", [points.map((each) => [Date.parse(each.time), each.percent])], { ceiling: 100 }));
}
