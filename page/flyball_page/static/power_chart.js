// Power against its cap over time, on a canvas. Each series has a width and a dash of its own, so that no colour is needed.

import { prepareCanvas, setText, themeColour } from "./dom.js";
import { shortTime, time, watts } from "./format.js";

const HEIGHT = 240;
const MARGIN = { left: 64, right: 12, top: 10, bottom: 24 };
const LEAST_SECONDS = 120;
const SERIES = [
  { key: "committedWatts", colour: "committed", width: 1.6, dash: [6, 4] },
  { key: "measuredWatts", colour: "measured", width: 1.8, dash: [] },
  { key: "capWatts", colour: "cap", width: 2.6, dash: [] },
];

/** Round steps of an axis up to `top`, some five of them. */
export function axisSteps(top) {
  const rough = top / 5;
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * magnitude).find((each) => each >= rough);
  const steps = [];
  for (let value = 0; value <= top * 1.0001; value += step) steps.push(value);
  return steps;
}

const TIME_STEPS = [10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];

export class PowerChart {
  constructor(canvas, said, now) {
    Object.assign(this, { canvas, said, now });
    this.history = null;
    this.rangeSeconds = 3600;
    this.cursor = null; // an index of the history
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.setCursor(null));
    canvas.addEventListener("blur", () => this.setCursor(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    document.addEventListener("themechange", () => this.draw());
  }

  show(history) {
    if (this.history && history && this.history.cap !== history.cap) this.cursor = null;
    this.history = history;
    if (this.cursor !== null && this.cursor >= (history?.time.length ?? 0)) this.cursor = null;
    this.draw();
  }

  setRange(seconds) {
    this.rangeSeconds = seconds;
    this.draw();
  }

  /** The scales of what is shown: from times and watts to pixels. */
  scales() {
    const width = this.canvas.parentElement.clientWidth;
    const end = this.now();
    // Of a page that has just begun to look nothing older is known: its first minutes are not squeezed into a corner.
    const began = this.history.began ?? end;
    const begin = Math.max(end - this.rangeSeconds, Math.min(began, end - LEAST_SECONDS));
    let top = 0;
    for (const { key } of SERIES) {
      this.history[key].forEach((value, index) => {
        if (value !== null && this.history.time[index] + this.history.stepSeconds >= begin) top = Math.max(top, value);
      });
    }
    top = (top || 1000) * 1.08;
    const inner = { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
    return {
      width, begin, end, top,
      x: (at) => MARGIN.left + ((at - begin) / (end - begin)) * inner.width,
      y: (value) => MARGIN.top + inner.height * (1 - value / top),
      at: (x) => begin + ((x - MARGIN.left) / inner.width) * (end - begin),
    };
  }

  draw() {
    if (!this.history) return;
    const scales = this.scales();
    const context = prepareCanvas(this.canvas, scales.width, HEIGHT);
    if (!context) return;
    this.drawAxes(context, scales);
    context.save();
    context.beginPath();
    context.rect(MARGIN.left, 0, scales.width - MARGIN.left - MARGIN.right, HEIGHT - MARGIN.bottom + 1);
    context.clip();
    this.drawUnknown(context, scales);
    this.fillMeasured(context, scales);
    for (const series of SERIES) this.drawSeries(context, scales, series);
    if (this.cursor !== null) this.drawCursor(context, scales);
    context.restore();
    this.describe();
  }

  drawAxes(context, { width, begin, end, top, x, y }) {
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = themeColour("muted");
    context.strokeStyle = themeColour("line");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of axisSteps(top)) {
      const at = Math.round(y(value)) + 0.5;
      context.beginPath();
      context.moveTo(MARGIN.left, at);
      context.lineTo(width - MARGIN.right, at);
      context.stroke();
      context.fillText(watts(value), MARGIN.left - 8, at);
    }
    context.textBaseline = "top";
    const step = TIME_STEPS.find((each) => each * Math.max(2, width / 110) >= end - begin) ?? 86400;
    const zone = new Date(end * 1000).getTimezoneOffset() * 60;
    for (let at = Math.ceil((begin - zone) / step) * step + zone; at <= end; at += step) {
      const place = x(at);
      context.textAlign = place > width - 40 ? "right" : place < MARGIN.left + 24 ? "left" : "center";
      context.fillText(step < 60 ? time(at) : shortTime(at), Math.min(place, width - MARGIN.right), HEIGHT - MARGIN.bottom + 8);
    }
  }

  /** The stretches in which a series has values, as lists of [index, time]. */
  stretches(key, begin) {
    const found = [];
    let open = null;
    const { time: times, stepSeconds } = this.history;
    for (let index = 0; index < times.length; index += 1) {
      if (times[index] + stepSeconds < begin) continue;
      if (this.history[key][index] === null) open = null;
      else {
        if (!open) found.push((open = []));
        open.push(index);
      }
    }
    return found;
  }

  drawUnknown(context, { begin, end, x }) {
    const { time: times, stepSeconds } = this.history;
    const gaps = [];
    let from = begin;
    times.forEach((at, index) => {
      const known = SERIES.some(({ key }) => this.history[key][index] !== null);
      if (!known || at + stepSeconds < begin) return;
      if (at - from > 1.5 * stepSeconds) gaps.push([from, at]);
      from = at + stepSeconds;
    });
    if (end - from > 2.5 * stepSeconds + 5) gaps.push([from, end]);
    context.strokeStyle = themeColour("hatch");
    context.lineWidth = 1;
    for (const [one, other] of gaps) {
      const [left, right] = [Math.max(MARGIN.left, x(one)), x(other)];
      context.save();
      context.beginPath();
      context.rect(left, MARGIN.top, right - left, HEIGHT - MARGIN.top - MARGIN.bottom);
      context.clip();
      context.beginPath();
      for (let place = left - HEIGHT; place < right; place += 8) {
        context.moveTo(place, HEIGHT);
        context.lineTo(place + HEIGHT, 0);
      }
      context.stroke();
      context.restore();
    }
  }

  /** Trace one stretch as steps: a value holds for its whole step. */
  trace(context, { x, y, end }, key, indices) {
    const { time: times, stepSeconds } = this.history;
    const last = times.length - 1;
    indices.forEach((index, position) => {
      const [left, right] = [x(times[index]), x(index === last ? end : times[index] + stepSeconds)];
      const height = y(this.history[key][index]);
      if (position === 0) context.moveTo(left, height);
      else context.lineTo(left, height);
      context.lineTo(right, height);
    });
  }

  fillMeasured(context, scales) {
    const { time: times, stepSeconds } = this.history;
    context.fillStyle = themeColour("measured-fill");
    for (const indices of this.stretches("measuredWatts", scales.begin)) {
      const last = indices[indices.length - 1];
      context.beginPath();
      this.trace(context, scales, "measuredWatts", indices);
      context.lineTo(scales.x(last === times.length - 1 ? scales.end : times[last] + stepSeconds), scales.y(0));
      context.lineTo(scales.x(times[indices[0]]), scales.y(0));
      context.fill();
    }
  }

  drawSeries(context, scales, { key, colour, width, dash }) {
    context.strokeStyle = themeColour(colour);
    context.lineWidth = width;
    context.setLineDash(dash);
    context.beginPath();
    for (const indices of this.stretches(key, scales.begin)) this.trace(context, scales, key, indices);
    context.stroke();
    context.setLineDash([]);
  }

  drawCursor(context, { x, y }) {
    const at = this.history.time[this.cursor] + this.history.stepSeconds / 2;
    context.strokeStyle = themeColour("text");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x(at), MARGIN.top);
    context.lineTo(x(at), HEIGHT - MARGIN.bottom);
    context.stroke();
    for (const { key, colour } of SERIES) {
      const value = this.history[key][this.cursor];
      if (value === null) continue;
      context.fillStyle = themeColour(colour);
      context.beginPath();
      context.arc(x(at), y(value), 4, 0, 2 * Math.PI);
      context.fill();
    }
  }

  describe() {
    const { time: times } = this.history;
    const index = this.cursor ?? times.length - 1;
    if (index < 0) {
      setText(this.said, "Nothing is known of this cap's power yet.");
      return;
    }
    const [cap, committed, measured] = ["capWatts", "committedWatts", "measuredWatts"].map((key) => this.history[key][index]);
    const when = this.cursor === null ? `Last known, ${time(times[index])}` : time(times[index]);
    const nothing = cap === null && committed === null && measured === null;
    setText(this.said, nothing ? `${when}: not known.` : `${when}: cap ${watts(cap)}, committed ${watts(committed)}, measured ${watts(measured)}.`);
    this.canvas.setAttribute("aria-label", `Power of ${this.history.cap} over time. Arrow keys go through time.`);
  }

  setCursor(index) {
    if (this.cursor === index) return;
    this.cursor = index;
    this.draw();
  }

  point(event) {
    if (!this.history?.time.length) return;
    const at = this.scales().at(event.offsetX);
    const { time: times, stepSeconds } = this.history;
    let nearest = times.length - 1;
    while (nearest > 0 && times[nearest] > at) nearest -= 1;
    this.setCursor(Math.abs(times[nearest] + stepSeconds / 2 - at) > 2 * stepSeconds ? null : nearest);
  }

  key(event) {
    const last = (this.history?.time.length ?? 0) - 1;
    if (last < 0) return;
    const first = Math.max(0, this.history.time.findIndex((at) => at >= this.now() - this.rangeSeconds));
    const from = this.cursor ?? last;
    const wanted = { ArrowLeft: from - 1, ArrowRight: from + 1, PageUp: from - 20, PageDown: from + 20, Home: first, End: last }[event.key];
    if (event.key === "Escape") this.setCursor(null);
    if (wanted === undefined) return;
    event.preventDefault();
    this.setCursor(Math.min(last, Math.max(first, wanted)));
  }
}
