// A job's frontier: what time costs for its rest. Each point is a size and a clock that no other beats in both.

import { element } from "./dom.js";
import { duration, energy } from "./format.js";
import { axisSteps } from "./power_chart.js";

const [WIDTH, HEIGHT] = [560, 300];
const MARGIN = { left: 70, right: 20, top: 14, bottom: 42 };
const SHAPES = ["circle", "square", "triangle", "cross", "kite", "wedge"];

/** Seconds between two labels of an axis as long, at most six of them, as clocks count. */
function timeStep(longest) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  return steps.find((step) => longest / step <= 6) ?? Math.ceil(longest / 6 / 86400) * 86400;
}

/** A mark of a number of GPUs: every size has a shape of its own. */
function mark(shape, x, y, attributes) {
  const paths = {
    circle: `M${x - 5} ${y}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0`,
    square: `M${x - 4.5} ${y - 4.5}h9v9h-9z`,
    triangle: `M${x} ${y - 6}l5.5 10h-11z`,
    kite: `M${x} ${y - 6}l5 6l-5 6l-5 -6z`,
    wedge: `M${x - 5.5} ${y - 4}h11l-5.5 10z`,
    cross: `M${x - 5} ${y - 2}h3v-3h4v3h3v4h-3v3h-4v-3h-3z`,
  };
  return element("svg:path", { d: paths[shape], ...attributes });
}

/** The chart of a job's document, with the same as a table below it; null where there is no frontier. */
export function frontierChart({ job, present, frontier: points }) {
  if (!points.length) return null;
  const all = present ? [...points, present] : points;
  const [longest, most] = [Math.max(...all.map((point) => point.seconds), 1) * 1.08, Math.max(...all.map((point) => point.kilojoules), 1) * 1.08];
  const x = (seconds) => MARGIN.left + (seconds / longest) * (WIDTH - MARGIN.left - MARGIN.right);
  const y = (kilojoules) => HEIGHT - MARGIN.bottom - (kilojoules / most) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const sizes = [...new Set(points.map((point) => point.gpus))].sort((one, other) => one - other);
  const shapeOf = (gpus) => SHAPES[Math.max(0, sizes.indexOf(gpus)) % SHAPES.length];
  const svg = element("svg:svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "frontier", role: "img" });
  svg.append(element("svg:title", {}, `Frontier of ${job.namespace}/${job.name}: ${points.length} choices of size and clock for the rest of the job`));
  for (const value of axisSteps(most)) {
    svg.append(element("svg:line", { x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: y(value), y2: y(value), class: "grid" }));
    svg.append(element("svg:text", { x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }, energy(value)));
  }
  const step = timeStep(longest);
  for (let value = 0; value <= longest; value += step) {
    svg.append(element("svg:text", { x: x(value), y: HEIGHT - MARGIN.bottom + 18, "text-anchor": "middle" }, step < 60 ? `${value} s` : duration(value)));
  }
  svg.append(element("svg:text", { x: (MARGIN.left + WIDTH) / 2, y: HEIGHT - 6, "text-anchor": "middle", class: "axis" }, "time left"));
  svg.append(element("svg:polyline", { points: points.map((point) => `${x(point.seconds)},${y(point.kilojoules)}`).join(" "), class: "frontier-line" }));
  for (const point of points) {
    const drawn = mark(shapeOf(point.gpus), x(point.seconds), y(point.kilojoules), { class: `frontier-point size-${sizes.indexOf(point.gpus) % SHAPES.length}` });
    drawn.append(element("svg:title", {}, sentence(point)));
    svg.append(drawn);
  }
  if (present) {
    const [atX, atY] = [x(present.seconds), y(present.kilojoules)];
    svg.append(element("svg:path", { d: `M${atX} ${atY - 11}L${atX + 11} ${atY}L${atX} ${atY + 11}L${atX - 11} ${atY}Z`, class: "present" }, element("svg:title", {}, `now: ${sentence(present)}`)));
    const toLeft = atX > WIDTH / 2;
    svg.append(element("svg:text", { x: atX + (toLeft ? -16 : 16), y: atY - 8, "text-anchor": toLeft ? "end" : "start", class: "present-label" }, `now: ${present.gpus} GPUs, ${present.clockMegahertz ?? "?"} MHz`));
  }
  const key = element("p", { class: "legend" });
  sizes.forEach((gpus, index) => {
    key.append(element("span", {}, element("svg:svg", { width: 14, height: 14, "aria-hidden": "true" }, mark(shapeOf(gpus), 7, 7, { class: `frontier-point size-${index % SHAPES.length}` })), ` ${gpus} GPU${gpus === 1 ? "" : "s"}`));
  });
  if (present) key.append(element("span", {}, element("svg:svg", { width: 16, height: 16, "aria-hidden": "true" }, element("svg:path", { d: "M8 1L15 8L8 15L1 8Z", class: "present" })), " where it is, by its own forecast"));
  return element("div", {}, svg, key, table(points));
}

const sentence = (point) => `${point.gpus} GPUs at ${point.clockMegahertz ?? "?"} MHz: ${duration(point.seconds)}, ${energy(point.kilojoules)}`;

function table(points) {
  const rows = points.map((point) => element("tr", {}, ...[point.gpus, point.clockMegahertz, duration(point.seconds), energy(point.kilojoules)].map((cell) => element("td", {}, String(cell)))));
  return element(
    "details", {}, element("summary", {}, "the same as a table"),
    element("table", {}, element("thead", {}, element("tr", {}, ...["GPUs", "MHz", "time left", "energy left"].map((head) => element("th", { scope: "col" }, head)))), element("tbody", {}, ...rows)),
  );
}
