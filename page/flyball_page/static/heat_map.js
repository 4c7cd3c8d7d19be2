// The nodes as a map: a square each, by row, coloured by their watts; what is not well has a sign on it, too.

import { prepareCanvas, setText, themeColour } from "./dom.js";
import { duration, plural, watts } from "./format.js";

export const STATES = {
  well: { sign: "", words: "well" },
  waiting: { sign: "…", words: "waiting for an acknowledgement" },
  trouble: { sign: "!", words: "trouble" },
  silent: { sign: "?", words: "silent" },
  unknown: { sign: "?", words: "unknown" },
  lost: { sign: "×", words: "not ready" },
};
const LABEL_WIDTH = 110;
const ROW_GAP = 8;
const SHADES = 7;

/** The rows with the nodes' indices in them, in the order of their names as people count (r2 before r10). */
export function groupByRow(nodes) {
  const rows = new Map();
  nodes.name.forEach((_name, index) => {
    const row = nodes.row[index];
    if (!rows.has(row)) rows.set(row, []);
    rows.get(row).push(index);
  });
  const order = new Intl.Collator("en", { numeric: true });
  return [...rows.entries()]
    .sort(([one], [other]) => (one === "") - (other === "") || order.compare(one, other))
    .map(([row, indices]) => [row, indices.sort((one, other) => order.compare(nodes.name[one], nodes.name[other]))]);
}

export class HeatMap {
  constructor(canvas, said, { now, onOpen }) {
    Object.assign(this, { canvas, said, now, onOpen });
    this.nodes = null;
    this.places = []; // of each node: [left, top], by index
    this.lines = []; // what is drawn in one line, from the top: indices
    this.side = 18;
    this.chosen = null; // a name
    this.measure = "measuredWatts";
    canvas.addEventListener("pointermove", (event) => this.choose(this.nodeAt(event), false));
    canvas.addEventListener("pointerleave", () => this.choose(null, false));
    canvas.addEventListener("click", (event) => {
      const name = this.nodeAt(event);
      if (name) this.onOpen(name);
    });
    canvas.addEventListener("focus", () => { if (this.chosen === null) this.choose(this.first(), true); });
    canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    document.addEventListener("themechange", () => this.draw());
  }

  show(nodes) {
    this.nodes = nodes;
    this.rows = groupByRow(nodes);
    this.index = new Map(nodes.name.map((name, index) => [name, index]));
    if (this.chosen !== null && !this.index.has(this.chosen)) this.chosen = null;
    this.draw();
  }

  setMeasure(measure) {
    this.measure = measure;
    this.draw();
  }

  /** The share of its largest limits that a node's watts are, 0 to 1; null: not known. */
  share(index) {
    const [value, most] = [this.nodes[this.measure][index], this.nodes.maxWatts[index]];
    return value === null || !most ? null : Math.min(1, Math.max(0, value / most));
  }

  layOut(width) {
    const names = this.rows.length > 1 || this.rows[0]?.[0];
    const left = names ? LABEL_WIDTH : 0;
    const total = this.nodes.name.length;
    this.side = total > 1500 ? 12 : total > 400 ? 17 : total > 64 ? 22 : 30;
    const columns = Math.max(1, Math.floor((width - left) / this.side));
    this.places = new Array(total);
    this.lines = [];
    this.labels = [];
    let top = 0;
    for (const [row, indices] of this.rows) {
      this.labels.push([row, top, indices.length]);
      for (let first = 0; first < indices.length; first += columns) {
        const line = indices.slice(first, first + columns);
        line.forEach((index, column) => { this.places[index] = [left + column * this.side, top]; });
        this.lines.push(line);
        top += this.side;
      }
      top += ROW_GAP;
    }
    return Math.max(top - ROW_GAP, this.side);
  }

  draw() {
    if (!this.nodes) return;
    const width = this.canvas.parentElement.clientWidth;
    const height = this.layOut(width);
    const context = prepareCanvas(this.canvas, width, height);
    if (!context) return;
    const shades = Array.from({ length: SHADES }, (_each, shade) => themeColour(`heat-${shade}`));
    const inks = Array.from({ length: SHADES }, (_each, shade) => themeColour(`heat-ink-${shade}`));
    const [unknown, text, muted, bad] = ["hatch", "text", "muted", "bad"].map(themeColour);
    const size = this.side - 2;
    context.textBaseline = "middle";
    context.textAlign = "center";
    context.font = `bold ${Math.round(this.side * 0.72)}px system-ui, sans-serif`;
    this.nodes.name.forEach((_name, index) => {
      const [x, y] = this.places[index];
      const share = this.share(index);
      const shade = share === null ? null : Math.min(SHADES - 1, Math.floor(share * SHADES));
      if (shade === null) {
        context.strokeStyle = unknown;
        context.lineWidth = 1;
        context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
        context.beginPath();
        context.moveTo(x, y + size);
        context.lineTo(x + size, y);
        context.stroke();
      } else {
        context.fillStyle = shades[shade];
        context.fillRect(x, y, size, size);
      }
      const state = this.nodes.state[index];
      if (state !== "well") {
        context.strokeStyle = bad;
        context.lineWidth = 2;
        context.strokeRect(x + 1, y + 1, size - 2, size - 2);
        context.fillStyle = shade === null ? text : inks[shade];
        context.fillText(STATES[state]?.sign ?? "?", x + size / 2, y + size / 2 + 1);
      }
    });
    context.textAlign = "left";
    context.font = "12px system-ui, sans-serif";
    for (const [row, top, number] of this.labels) {
      if (this.labels.length === 1 && !row) break;
      context.fillStyle = row ? text : muted;
      context.fillText(clip(context, row || "no row", LABEL_WIDTH - 38), 0, top + this.side / 2);
      context.fillStyle = muted;
      context.textAlign = "right";
      context.fillText(String(number), LABEL_WIDTH - 10, top + this.side / 2);
      context.textAlign = "left";
    }
    const chosen = this.index.get(this.chosen);
    if (chosen !== undefined) {
      const [x, y] = this.places[chosen];
      context.strokeStyle = text;
      context.lineWidth = 2;
      context.strokeRect(x - 1, y - 1, size + 2, size + 2);
    }
    this.describe();
  }

  describe() {
    const counts = new Map();
    for (const state of this.nodes.state) counts.set(state, (counts.get(state) ?? 0) + 1);
    const parts = [...counts].map(([state, number]) => `${number} ${STATES[state]?.words ?? state}`);
    const label = `Map of ${plural(this.nodes.name.length, "node")}: ${parts.join(", ") || "none"}. Arrow keys go from node to node, Enter opens one.`;
    if (this.canvas.getAttribute("aria-label") !== label) this.canvas.setAttribute("aria-label", label);
    const chosen = this.index.get(this.chosen);
    setText(this.said, chosen === undefined ? "" : this.sentence(chosen));
  }

  /** A node in a sentence. */
  sentence(index) {
    const { nodes } = this;
    const drawn = nodes.measuredWatts[index];
    const parts = [
      `${nodes.name[index]}: ${STATES[nodes.state[index]]?.words ?? nodes.state[index]}`,
      drawn === null ? "what it draws is not known" : `draws ${watts(drawn)}${nodes.unreadGpus[index] ? ` (without ${plural(nodes.unreadGpus[index], "GPU")} that cannot be read)` : ""}`,
      `limits ${watts(nodes.limitWatts[index])}`,
      `committed ${watts(nodes.committedWatts[index])} of ${watts(nodes.maxWatts[index])}`,
    ];
    if (nodes.jobs[index].length) parts.push(`jobs ${nodes.jobs[index].join(", ")}`);
    if (nodes.cordoned[index]) parts.push("cordoned");
    parts.push(nodes.reported[index] === null ? "no report seen yet" : `report seen ${duration(this.now() - nodes.reported[index])} ago`);
    return `${parts.join("; ")}.${nodes.why[index] ? ` ${nodes.why[index]}.` : ""}`;
  }

  nodeAt(event) {
    if (!this.nodes) return null;
    const found = this.places.findIndex(([x, y]) => event.offsetX >= x && event.offsetX < x + this.side && event.offsetY >= y && event.offsetY < y + this.side);
    return found < 0 ? null : this.nodes.name[found];
  }

  first() {
    return this.lines.length ? this.nodes.name[this.lines[0][0]] : null;
  }

  choose(name, byKey) {
    if (!byKey && name === null && document.activeElement === this.canvas) return;
    if (this.chosen === name) return;
    this.chosen = name;
    this.draw();
  }

  key(event) {
    if (!this.nodes || !this.lines.length) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (this.chosen !== null) this.onOpen(this.chosen);
      return;
    }
    const index = this.index.get(this.chosen) ?? this.lines[0][0];
    const line = this.lines.findIndex((each) => each.includes(index));
    const column = this.lines[line].indexOf(index);
    const flat = this.lines.flat();
    const at = flat.indexOf(index);
    const inLine = (number) => {
      const wanted = this.lines[Math.min(this.lines.length - 1, Math.max(0, number))];
      return wanted[Math.min(column, wanted.length - 1)];
    };
    const wanted = {
      ArrowLeft: () => flat[Math.max(0, at - 1)],
      ArrowRight: () => flat[Math.min(flat.length - 1, at + 1)],
      ArrowUp: () => inLine(line - 1),
      ArrowDown: () => inLine(line + 1),
      Home: () => flat[0],
      End: () => flat[flat.length - 1],
    }[event.key];
    if (!wanted) return;
    event.preventDefault();
    this.choose(this.nodes.name[wanted()], true);
    const [, top] = this.places[this.index.get(this.chosen)];
    const box = this.canvas.getBoundingClientRect();
    if (box.top + top < 0 || box.top + top + this.side > window.innerHeight) window.scrollBy(0, box.top + top - window.innerHeight / 2);
  }
}

/** A text that fits into so many pixels. */
function clip(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let kept = text;
  while (kept && context.measureText(`${kept}…`).width > width) kept = kept.slice(0, -1);
  return `${kept}…`;
}
