// Puts the page together: what is fetched, where it goes, what the keys do.

import { capState, operatorLeads, renderCaps } from "./caps.js";
import { byId, element, reconcile, setAttribute, setText } from "./dom.js";
import { Feed } from "./feed.js";
import { count, duration, parseTime, plural, shortTime, time, UNKNOWN, watts } from "./format.js";
import { HeatMap, STATES } from "./heat_map.js";
import { eventItem, jobPanel, Jobs } from "./jobs.js";
import { PowerChart } from "./power_chart.js";

const STALE_ANSWER_SECONDS = 12;
const STALE_COPY_SECONDS = 150;
const RANGES = [["15 min", 900], ["1 h", 3600], ["6 h", 21600]];
// For so long the history is kept in short steps.
const FINE_SECONDS = 3600;
const MAX_TROUBLES = 50;
const NAME = /^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$/;

const shown = { overview: null, nodes: null, jobs: null, cap: null, job: null, node: null, problems: new Map() };

const feed = new Feed({
  wanted: () => ["api/overview", ...(shown.cap ? [historyPath()] : []), "api/nodes", "api/jobs", ...(shown.job ? [`api/jobs/${shown.job}`] : []), ...(shown.node ? [`api/nodes/${shown.node}`] : [])],
  onDocument: take,
  onRound: endRound,
  onSignIn: askForToken,
});
const now = () => feed.now();
const chart = new PowerChart(byId("power-chart"), byId("power-said"), now);
const map = new HeatMap(byId("node-map"), byId("node-said"), { now, onOpen: openNode });
const jobs = new Jobs({ now });

// --- what comes in -----------------------------------------------------------------------------------------------------

function take(path, found) {
  if (path === "api/overview") takeOverview(found);
  else if (path === "api/nodes") takeNodes(found);
  else if (path === "api/jobs") {
    shown.jobs = found;
    jobs.show(found);
    renderEvents();
  } else if (path.startsWith("api/history/")) {
    if (path === historyPath()) chart.show(found);
  } else if (path.startsWith("api/jobs/")) {
    if (path === `api/jobs/${shown.job}`) renderJob(found);
  } else if (path === `api/nodes/${shown.node}`) renderNode(found);
}

function takeOverview(overview) {
  shown.overview = overview;
  const names = overview.caps.map((cap) => cap.name);
  if (!names.includes(shown.cap)) chooseCap(names[0] ?? null);
  renderOverview();
  renderEvents();
}

function renderOverview() {
  const { overview } = shown;
  if (!overview) return;
  renderCaps(byId("caps"), overview.caps, { leads: leads(), chosen: shown.cap, onChoose: chooseCap });
  byId("power-figure").hidden = !overview.caps.length;
  const { totals } = overview;
  const inJobs = `${count(totals.gpusInJobs)} of ${plural(totals.gpus, "GPU")} in jobs`;
  const drawn = totals.measuredWatts === null ? "what they draw is not known" : `the GPUs draw ${watts(totals.measuredWatts)}${totals.unreadNodes ? ` (without ${plural(totals.unreadNodes, "node")} of which not all is known)` : ""}`;
  setText(byId("totals"), `${plural(totals.nodes, "node")}, ${inJobs}; ${drawn}`);
  setText(byId("began"), `The chart goes back to ${shortTime(overview.began)} at the most, when this page's server began.`);
}

const historyPath = () => `api/history/${shown.cap}${chart.rangeSeconds > FINE_SECONDS ? "/whole" : ""}`;

const leads = () => (shown.overview ? operatorLeads(shown.overview.operator, now(), shown.overview.began) : null);

function chooseCap(name) {
  if (shown.cap === name) return;
  feed.tags.delete(historyPath());
  shown.cap = name;
  renderOverview();
  if (name) feed.soon();
}

function takeNodes(nodes) {
  shown.nodes = nodes;
  map.show(nodes);
  renderStates(nodes);
}

function renderStates(nodes) {
  const counts = new Map();
  for (const state of nodes.state) counts.set(state, (counts.get(state) ?? 0) + 1);
  const present = Object.keys(STATES).filter((state) => counts.has(state));
  reconcile(byId("node-states"), present, (state) => state, () => element("span", {}, element("i", { class: "sign" }), element("span")), (item, state) => {
    setText(item.firstChild, STATES[state].sign);
    setAttribute(item.firstChild, "data-state", state);
    setText(item.lastChild, ` ${counts.get(state)} ${STATES[state].words}`);
  });
  const troubles = nodes.name.map((_name, index) => index).filter((index) => nodes.state[index] !== "well");
  const box = byId("node-troubles");
  box.hidden = troubles.length === 0;
  setText(box.querySelector("summary"), `${plural(troubles.length, "node")} not well${troubles.length > MAX_TROUBLES ? ` (the first ${MAX_TROUBLES})` : ""}`);
  reconcile(box.querySelector("tbody"), troubles.slice(0, MAX_TROUBLES), (index) => nodes.name[index], () => element("tr", {}, ...Array.from({ length: 5 }, () => element("td"))), (row, index) => {
    const reported = nodes.reported[index];
    [nodes.name[index], nodes.row[index] || UNKNOWN, STATES[nodes.state[index]]?.words ?? nodes.state[index], nodes.why[index], reported === null ? "none yet" : `${duration(now() - reported)} ago`].forEach((text, column) => setText(row.cells[column], text));
  });
}

function renderScale() {
  byId("node-scale").replaceChildren("0 %", ...Array.from({ length: 7 }, (_each, shade) => element("i", { class: `swatch heat-${shade}` })), "100 % of the largest limits");
}

function renderEvents() {
  const events = [...(shown.overview?.events ?? []), ...(shown.jobs?.events ?? [])];
  events.sort((one, other) => (parseTime(other.time) ?? 0) - (parseTime(one.time) ?? 0));
  const list = byId("event-list");
  const wanted = events.slice(0, 60).map((event) => [JSON.stringify(event), event]);
  reconcile(list, wanted, ([key]) => key, ([, event]) => eventItem(event), () => {});
  if (!wanted.length) list.replaceChildren(element("li", { class: "empty" }, "None in the last hour, which is how long Kubernetes keeps them."));
}

// --- one job, one node -------------------------------------------------------------------------------------------------

function followAddress() {
  const asked = /^#job=([^/]+)\/([^/]+)$/.exec(decodeURIComponent(location.hash));
  const wanted = asked && NAME.test(asked[1]) && NAME.test(asked[2]) ? `${asked[1]}/${asked[2]}` : null;
  if (shown.job === wanted) return;
  feed.tags.delete(`api/jobs/${shown.job}`);
  shown.job = wanted;
  const box = byId("job-detail");
  box.hidden = wanted === null;
  box.replaceChildren();
  if (wanted) {
    setText(box, `Asking for ${wanted} …`);
    box.dataset.fresh = "true";
    feed.soon();
  }
}

function renderJob(detail) {
  const box = byId("job-detail");
  const open = [...box.querySelectorAll("details")].map((each) => each.open);
  const focused = box.contains(document.activeElement) && document.activeElement !== box;
  if (focused && !document.activeElement.matches(".close")) return; // somebody reads it: it is not pulled away
  box.replaceChildren(jobPanel(detail, now(), closeJob));
  [...box.querySelectorAll("details")].forEach((each, index) => { each.open = open[index] ?? false; });
  if (box.dataset.fresh) {
    delete box.dataset.fresh;
    box.focus({ preventScroll: true });
    box.scrollIntoView({ block: "nearest" });
  } else if (focused) box.querySelector(".close").focus();
}

function closeJob() {
  const row = [...byId("job-table").tBodies[0].rows].find((each) => each.dataset.key === shown.job);
  history.replaceState(null, "", location.pathname + location.search);
  followAddress();
  row?.querySelector("a").focus();
}

function openNode(name) {
  feed.tags.delete(`api/nodes/${shown.node}`);
  shown.node = name;
  feed.soon();
}

function closeNode() {
  shown.node = null;
  byId("node-detail").hidden = true;
  byId("node-detail").replaceChildren();
  byId("node-map").focus({ preventScroll: true });
}

function renderNode({ node, state, why }) {
  const close = element("button", { type: "button", class: "close", "aria-label": "Close this node" }, "×");
  close.addEventListener("click", closeNode);
  const heads = ["GPU", "model", "draws", "limit", "smallest", "largest", "pod", "state"];
  const rows = node.devices.map((gpu) => element("tr", {}, ...[gpu.index ?? "?", gpu.model || "?", watts(gpu.measuredWatts), watts(gpu.limitWatts), watts(gpu.minWatts), watts(gpu.maxWatts), gpu.pod || "none", gpu.healthy.status === false ? `${gpu.healthy.reason}: ${gpu.healthy.message}` : gpu.healthy.status === true ? "healthy" : "not known"].map((text) => element("td", {}, String(text)))));
  const box = byId("node-detail");
  const focused = box.contains(document.activeElement);
  box.hidden = false;
  box.replaceChildren(element(
    "article", {}, close, element("h3", {}, node.name),
    element("p", {}, `${STATES[state]?.words ?? state}${why ? `: ${why}` : ""}. Agent ${node.agentVersion || "unknown"}, mode ${node.mode || "unknown"}; granted ${watts(node.grantedWatts)}, committed ${watts(node.committedWatts)}; acknowledged ${time(parseTime(node.acknowledged))}${node.acknowledgedCurrent ? "" : " (an earlier grant)"}; caps ${node.caps.join(", ") || "none"}.`),
    element("div", { class: "wide" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))), element("tbody", {}, ...rows))),
  ));
  if (focused) box.querySelector(".close").focus();
}

// --- how old it is, and what went wrong ----------------------------------------------------------------------------------

function endRound(problems) {
  shown.problems = problems;
  for (const [path, error] of problems) {
    if (path === "api/jobs" && error.status === 403) jobs.refuse(error.message);
    if (path === `api/jobs/${shown.job}` && error.status === 404) setText(byId("job-detail"), `${shown.job}: ${error.message}.`);
    if (path === `api/nodes/${shown.node}` && error.status === 404) closeNode();
  }
  const signedOut = [...problems.values()].some((error) => error.status === 401);
  if (!signedOut) byId("sign-in").hidden = true;
  renderAge();
}

function renderAge() {
  const badge = byId("freshness");
  const { overview, problems } = shown;
  const silentFor = feed.lastAnswer === null ? null : (Date.now() - feed.lastAnswer) / 1000;
  const newest = overview ?? shown.jobs;
  if (newest === null) {
    setText(badge, silentFor === null ? "waiting for the first answer" : "nothing to show yet");
  } else {
    const age = now() - newest.asOf;
    const stale = age > STALE_ANSWER_SECONDS;
    setAttribute(badge, "data-state", stale ? "bad" : "good");
    setText(badge, `as of ${time(newest.asOf)}${stale ? `: ${duration(age)} old` : ""}`);
    document.body.classList.toggle("stale", stale);
  }
  const operator = byId("operator");
  const lead = leads();
  setAttribute(operator, "data-state", lead === null ? "unknown" : lead ? "good" : "bad");
  const said = overview?.operator;
  setText(operator, lead === null ? "? operator: not known yet" : lead ? "✓ an operator leads" : said?.seen ? `✕ no operator since ${time(said.seen)}` : "✕ no operator leads");
  setAttribute(operator, "title", said?.holder ? `${said.holder}, epoch ${said.epoch}` : null);
  renderNotices(problems, silentFor);
}

function renderNotices(problems, silentFor) {
  const notices = [];
  for (const [path, error] of problems) {
    if (error.status === 401 || (error.status === 404 && path !== "api/overview")) continue;
    if (error.status) notices.push(["waiting", `${path}: ${error.message}`]);
    else notices.push(["bad", `This page's server does not answer${silentFor === null ? "" : ` for ${duration(silentFor)}`}. What is shown is old.`]);
  }
  const { overview } = shown;
  if (overview) {
    for (const [kind, why] of Object.entries(overview.missing)) notices.push(["waiting", `${kind} are missing: ${why}.`]);
    for (const [kind, fresh] of Object.entries(overview.copies)) {
      if (fresh !== null && now() - fresh > STALE_COPY_SECONDS) notices.push(["bad", `${kind}: the API server has said nothing for ${duration(now() - fresh)}; what is shown of them is old.`]);
    }
    if (overview.problems.length) notices.push(["waiting", `Not everything can be read: ${overview.problems.join("; ")}${overview.moreProblems ? `; and ${overview.moreProblems} more` : ""}.`]);
    for (const cap of overview.caps) {
      const [kind, word, why] = capState(cap, leads());
      if (kind === "bad") notices.push(["bad", `PowerCap ${cap.name}, ${word}: ${why}`]);
    }
  }
  reconcile(byId("notices"), notices, ([, text]) => text, ([state, text]) => element("p", { class: "notice", "data-state": state }, text), () => {});
}

// --- signing in ----------------------------------------------------------------------------------------------------------

function askForToken(refusal) {
  byId("sign-in").hidden = false;
  const said = byId("sign-in-refusal");
  said.hidden = !refusal;
  setText(said, refusal);
  if (!byId("sign-in").contains(document.activeElement)) byId("token").focus();
}

byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  feed.token = byId("token").value.trim();
  byId("token").value = "";
  feed.soon();
});

// --- keys ------------------------------------------------------------------------------------------------------------------

function goTo(id) {
  byId(id).scrollIntoView({ block: "start" });
  ({ power: byId("power"), nodes: byId("node-map"), jobs: byId("job-search"), events: byId("event-list") })[id].focus({ preventScroll: true });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  if (event.key === "Escape") {
    if (event.target.matches("input")) event.target.blur();
    else if (shown.job) closeJob();
    else if (shown.node) closeNode();
    return;
  }
  if (event.target.matches("input, select, textarea")) return;
  const act = { 1: () => goTo("power"), 2: () => goTo("nodes"), 3: () => goTo("jobs"), 4: () => goTo("events"), "/": () => byId("job-search").focus(), t: () => window.flyballNextTheme(), "?": () => byId("keys").showModal() }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
byId("open-keys").addEventListener("click", () => byId("keys").showModal());
byId("event-list").tabIndex = -1;

for (const [word, seconds] of RANGES) {
  const button = element("button", { type: "button", "aria-pressed": String(seconds === chart.rangeSeconds) }, word);
  button.addEventListener("click", () => {
    for (const other of byId("ranges").children) setAttribute(other, "aria-pressed", String(other === button));
    feed.tags.delete(historyPath());
    chart.setRange(seconds);
    feed.soon();
  });
  byId("ranges").append(button);
}
byId("node-measure").addEventListener("change", (event) => map.setMeasure(event.target.value));
window.addEventListener("hashchange", followAddress);
renderScale();
followAddress();
window.flyballArrived();
setInterval(() => {
  renderAge();
  renderOverview();
  chart.draw();
}, 1000);
if (!feed.running) feed.soon();
