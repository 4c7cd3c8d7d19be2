// The jobs as a table that keeps its rows, and one job whole: why it has what it has, its conditions and its frontier.

import { byId, element, reconcile, setAttribute, setText } from "./dom.js";
import { count, duration, energy, kilowattHours, parseTime, percent, plural, time, UNKNOWN, watts } from "./format.js";
import { frontierChart } from "./frontier_chart.js";

const PAGE = 25;
const planned = (job) => (job.gpus === 0 && job.plannedGpus ? `→ ${job.plannedGpus}` : String(job.gpus));
const size = (job) => (job.minGpus === job.maxGpus ? planned(job) : `${planned(job)} of ${job.minGpus}–${job.maxGpus}`);

// What a column says, and by what it is sorted; null sorts last either way.
const COLUMNS = [
  { key: "name", head: "job", text: (job) => job.name, by: (job) => `${job.namespace}/${job.name}` },
  { key: "state", head: "state", text: (job) => (job.atRisk ? `${job.state || "?"} ⚠` : job.state || "?"), by: (job) => job.state },
  { key: "gpus", head: "GPUs", number: true, text: size, by: (job) => job.gpus || job.plannedGpus / 1e6 },
  { key: "clock", head: "MHz", number: true, text: (job) => count(job.clockMegahertz), by: (job) => job.clockMegahertz },
  { key: "limit", head: "limit a GPU", number: true, text: (job) => watts(job.powerLimitWatts), by: (job) => job.powerLimitWatts },
  { key: "watts", head: "draws", number: true, text: (job) => (job.gpus ? watts(job.watts) : UNKNOWN), by: (job) => (job.gpus ? job.watts : null) },
  { key: "progress", head: "progress", number: true, text: (job) => (job.estimated ? `~${percent(job.progress)}` : percent(job.progress)), by: (job) => job.progress },
  { key: "energy", head: "used", number: true, text: (job) => energy(job.consumedKilojoules), by: (job) => job.consumedKilojoules },
  { key: "finish", head: "ends in", number: true, text: (job, now) => (job.finished || job.finish === null ? UNKNOWN : duration(job.finish - now)), by: (job) => job.finish },
  { key: "queue", head: "starts in", number: true, text: (job, now) => (job.queue ? `${job.queue.start === null ? "?" : duration(job.queue.start - now)}, ${job.queue.position} of ${job.queue.waiting}` : UNKNOWN), by: (job) => job.queue?.position ?? null },
  { key: "why", head: "why", text: (job) => job.why, by: (job) => job.why },
];

export class Jobs {
  constructor({ now, onOpen }) {
    Object.assign(this, { now, onOpen });
    this.jobs = [];
    this.omitted = 0;
    this.shown = PAGE;
    this.order = null; // [column, 1 or -1]
    this.refusal = "";
    this.makeHead();
    byId("job-search").addEventListener("input", () => { this.shown = PAGE; this.render(); });
    byId("job-finished").addEventListener("change", () => this.render());
    byId("job-more").addEventListener("click", () => { this.shown += PAGE; this.render(); });
  }

  makeHead() {
    const head = byId("job-table").tHead.rows[0];
    for (const column of COLUMNS) {
      const button = element("button", { type: "button" }, column.head);
      button.addEventListener("click", () => {
        const [current, direction] = this.order ?? [];
        this.order = current === column ? (direction === 1 ? [column, -1] : null) : [column, 1];
        this.render();
      });
      head.append(element("th", { scope: "col", class: column.number ? "number" : null }, button));
    }
  }

  show({ jobs, omitted, namespaces }) {
    Object.assign(this, { jobs, omitted, namespaces, refusal: "" });
    this.render();
  }

  refuse(reason) {
    Object.assign(this, { jobs: [], omitted: 0, refusal: reason });
    this.render();
  }

  wanted() {
    const words = byId("job-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = this.jobs.filter((job) => {
      if (job.finished && !byId("job-finished").checked) return false;
      const text = `${job.namespace}/${job.name} ${job.state} ${job.objective} ${job.why}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    if (!this.order) return found;
    const [{ by }, direction] = this.order;
    return found.sort((one, other) => {
      const [left, right] = [by(one) ?? null, by(other) ?? null];
      if (left === null || right === null) return (left === null) - (right === null);
      return direction * (left < right ? -1 : left > right ? 1 : 0);
    });
  }

  render() {
    const wanted = this.wanted();
    const table = byId("job-table");
    [...table.tHead.rows[0].cells].forEach((cell, index) => {
      const sorted = this.order?.[0] === COLUMNS[index] ? (this.order[1] === 1 ? "ascending" : "descending") : "none";
      setAttribute(cell, "aria-sort", sorted);
    });
    const visible = wanted.slice(0, this.shown);
    reconcile(table.tBodies[0], visible, (job) => `${job.namespace}/${job.name}`, (job) => this.makeRow(job), (row, job) => this.updateRow(row, job));
    table.hidden = visible.length === 0;
    const running = this.jobs.filter((job) => job.gpus > 0).length;
    const finished = this.jobs.filter((job) => job.finished).length;
    const parts = [`${running} on GPUs, ${this.jobs.length - running - finished} not, ${finished} finished`];
    if (wanted.length !== this.jobs.length) parts.push(`${wanted.length} shown`);
    if (this.namespaces) parts.push(`of ${this.namespaces.join(", ")}, the namespaces that you may see`);
    if (this.omitted) parts.push(`${plural(this.omitted, "finished or waiting job")} left out of this page`);
    setText(byId("job-count"), this.refusal || (this.jobs.length ? parts.join("; ") : "There is no EnergyAwareJob."));
    const more = byId("job-more");
    more.hidden = wanted.length <= visible.length;
    setText(more, `Show ${Math.min(PAGE, wanted.length - visible.length)} more of ${wanted.length}`);
  }

  makeRow(job) {
    const row = element("tr");
    for (const column of COLUMNS) {
      const cell = element(column.key === "name" ? "th" : "td", { class: column.number ? "number" : column.key, scope: column.key === "name" ? "row" : null });
      if (column.key === "name") {
        const link = element("a", { href: `#job=${job.namespace}/${job.name}` });
        cell.append(link, element("small"));
      } else if (column.key === "progress") cell.append(element("span"), element("i", { class: "bar", "aria-hidden": "true" }, element("i")));
      row.append(cell);
    }
    return row;
  }

  updateRow(row, job) {
    COLUMNS.forEach((column, index) => {
      const cell = row.cells[index];
      const text = column.text(job, this.now());
      if (column.key === "name") {
        setText(cell.firstChild, text);
        setText(cell.lastChild, job.namespace);
      } else if (column.key === "progress") {
        setText(cell.firstChild, text);
        cell.lastChild.firstChild.style.width = `${100 * (job.progress ?? 0)}%`;
        setAttribute(cell, "title", job.estimated ? "estimated by the job's model; it reports nothing itself" : null);
      } else {
        setText(cell, text);
        if (column.key === "why") setAttribute(cell, "title", text);
        if (column.key === "energy") setAttribute(cell, "title", kilowattHours(job.consumedKilojoules));
        if (column.key === "queue") setAttribute(cell, "title", job.queue ? job.queue.basis : null);
        if (column.key === "finish") setAttribute(cell, "title", job.earliestFinish && job.latestFinish ? `between ${time(job.earliestFinish)} and ${time(job.latestFinish)}` : null);
        if (column.key === "state") setAttribute(cell, "title", job.atRisk ? "its deadline or its energy budget is at risk" : null);
      }
    });
  }
}

const CONDITIONS = [
  ["admitted", "Admitted"], ["placed", "Placed"], ["limitsEnforced", "Limits enforced"], ["budgetHealthy", "Budget healthy"],
  ["deadlineAtRisk", "Deadline at risk"], ["resizing", "Resizing"], ["succeeded", "Succeeded"], ["failed", "Failed"],
];

/** A job's document as a panel; `now` is the server's time. */
export function jobPanel(detail, now, onClose) {
  const { job } = detail;
  const close = element("button", { type: "button", class: "close", "aria-label": "Close this job" }, "×");
  close.addEventListener("click", onClose);
  const facts = [
    ["why", job.why || UNKNOWN],
    ["state", `${job.state || "not known"}${job.current ? "" : " (of an earlier spec)"}`],
    ["GPUs", `${job.gpus} in use, ${job.plannedGpus} planned, ${job.minGpus} to ${job.maxGpus} wanted`],
    ["where", (job.gpus ? job.nodes : job.plannedNodes).join(", ") || UNKNOWN],
    ["clock, limit", `${count(job.clockMegahertz)} MHz, ${watts(job.powerLimitWatts)} a GPU`],
    ["draws", job.gpus ? watts(job.watts) : UNKNOWN],
    ["progress", job.progress ? `${job.progress.estimated ? "~" : ""}${count(job.progress.iterations)}${job.progress.total ? ` of ${count(job.progress.total)}` : ""} iterations${job.progress.estimated ? ", by its model: it reports nothing itself" : `, reported ${time(parseTime(job.progress.reported))}`}` : "not known"],
    ["energy", job.energy ? `${energy(job.energy.consumedKilojoules)} (${kilowattHours(job.energy.consumedKilojoules)}) used, ${energy(job.energy.projectedKilojoules)} at its end, budget ${job.energy.budgetKilojoules ? energy(job.energy.budgetKilojoules) : "none"}` : "not known"],
    ["ends", job.completed ? `ended ${time(parseTime(job.completed))}` : job.finish ? `${time(parseTime(job.finish))}, in ${duration(parseTime(job.finish) - now)}${job.earliestFinish && job.latestFinish ? `; between ${time(parseTime(job.earliestFinish))} and ${time(parseTime(job.latestFinish))}` : ""}` : "not known"],
    ...(job.queue ? [["queue", `${job.queue.position} of ${job.queue.waiting}; ${job.queue.start ? `can expect to start in ${duration(parseTime(job.queue.start) - now)}, ${job.queue.basis}` : `when it starts is not known: ${job.queue.basis}`}, by the plan of ${time(parseTime(job.queue.time))}`]] : []),
    ["figures of", job.figures ? time(parseTime(job.figures)) : "not known"],
    ["deadline", job.deadline ? `${new Date(job.deadline).toLocaleString()}` : "none"],
    ["objective, priority", `${job.objective}, ${job.priority}`],
    ["restarts", job.restarts === null || job.restarts === undefined ? UNKNOWN : `${job.restarts} of at most ${job.maxRestarts}`],
  ];
  const conditions = CONDITIONS.filter(([key]) => job[key]).map(([key, head]) =>
    element("tr", {}, element("th", { scope: "row" }, head), element("td", {}, job[key].status === null || job[key].status === undefined ? "not known" : job[key].status ? "yes" : "no"), element("td", {}, job[key].reason), element("td", {}, job[key].message)));
  return element(
    "article", {}, close,
    element("h3", {}, `${job.namespace}/${job.name}`),
    element("div", { class: "columns" },
      element("dl", {}, ...facts.flatMap(([head, text]) => [element("dt", {}, head), element("dd", {}, text)])),
      element("div", {},
        element("h4", {}, "Frontier: what time costs for the rest"),
        frontierChart(detail) ?? element("p", { class: "empty" }, job.progress?.total === null || job.progress?.total === undefined
          ? "Nobody knows: the job says no number of iterations, so that its end is not known."
          : "Nobody knows yet: the operator has planned nothing of this job that it could tell."),
        detail.present || !detail.frontier.length ? null : element("p", {}, "Where the job is on it is not known: it does not run, or has no forecast."),
        detail.onlyEnds ? element("p", {}, `Drawn are the fastest and the thriftiest of ${job.tradeoff.choices} choices. ${detail.profiles === null ? "The others are in its EnergyProfile." : "The others follow once a model has been fitted to what is measured of this job."}`) : null,
        element("p", { class: "muted" }, model(detail.profiles, job.namespace)))),
    element("details", {}, element("summary", {}, "Conditions"), element("table", {}, element("tbody", {}, ...conditions))),
    detail.events.length ? element("details", {}, element("summary", {}, `Events (${detail.events.length})`), element("ol", { class: "events" }, ...detail.events.map(eventItem))) : null,
  );
}

function model(profiles, namespace) {
  if (profiles === null) return `What was learned of this job is not shown: you may not list energyprofiles of flyball.dev in ${namespace}.`;
  const fitted = profiles.filter((profile) => profile.observations);
  if (!fitted.length) return "Time and energy are those of its model class: nothing has been measured of this job yet.";
  return fitted.map((profile) => `Fitted to ${plural(profile.observations, "observation")} on ${profile.gpuModel}: typically off by ${((profile.timeErrorPermille ?? 0) / 10).toFixed(1)} % in time and ${((profile.energyErrorPermille ?? 0) / 10).toFixed(1)} % in energy.`).join(" ");
}

export function eventItem(event) {
  const about = event.namespace ? `${event.kind} ${event.namespace}/${event.name}` : `${event.kind} ${event.name}`;
  return element(
    "li", { class: event.warning ? "warning" : null },
    element("time", {}, time(parseTime(event.time))), " ",
    element("b", {}, `${event.warning ? "⚠ " : ""}${event.reason}`), ` ${about}`, event.count > 1 ? ` (${event.count} times)` : null, ": ",
    event.note,
  );
}
