// The caps: what each allows, what is committed and drawn under it, and whether it is held, as far as anybody knows.

import { element, reconcile, setAttribute, setText } from "./dom.js";
import { duration, energy, parseTime, time, watts } from "./format.js";

const SIGNS = { good: "✓", bad: "✕", unknown: "?", waiting: "…" };

/** Whether an operator gives signs of life: true, false, or null while nobody has watched for long enough. */
export function operatorLeads(operator, now, began) {
  if (!operator) return null;
  if (!operator.holder) return false;
  const patience = operator.durationSeconds ?? 0;
  if (operator.seen === null) return now - began > patience + 5 ? false : null;
  return now - operator.seen <= patience + 5;
}

/** What a cap's state is, in one word with its kind; `leads` says whether what stands in its status is of now. */
export function capState(cap, leads) {
  if (cap.refusal) return ["unknown", "unreadable", cap.refusal];
  if (cap.emergency?.status) return ["bad", "emergency", cap.emergency.message];
  if (leads === false) {
    const was = cap.enforced.status === true ? "it was enforced then" : cap.enforced.status === false ? "it was not enforced then" : "nobody knew then either";
    return ["unknown", "nobody knows", `no operator gives a sign: the figures are from before; ${was}`];
  }
  if (!cap.current) return ["waiting", "being taken in", "the status still speaks of an earlier spec"];
  if (cap.breached.status === true) return ["bad", "breached", cap.breached.message];
  if (cap.feasible.status === false) return ["bad", "infeasible", cap.feasible.message];
  if (cap.enforced.reason === "Observing") return ["unknown", "observed, not held", cap.enforced.message];
  if (cap.enforced.status === true) return ["good", "enforced", cap.enforced.message];
  if (cap.enforced.status === false) return ["waiting", "being enforced", cap.enforced.message];
  return ["unknown", "not known", cap.enforced.message];
}

export function renderCaps(parent, caps, { leads, chosen, onChoose }) {
  if (!caps.length) {
    parent.replaceChildren(element("p", { class: "empty" }, "There is no PowerCap: nothing bounds what these nodes may draw."));
    return;
  }
  for (const child of [...parent.children]) if (!child.dataset.key) child.remove();
  reconcile(parent, caps, (cap) => cap.name, (cap) => makeCap(cap, onChoose), (card, cap) => updateCap(card, cap, leads, cap.name === chosen));
}

function makeCap(cap, onChoose) {
  const card = element(
    "button", { type: "button", class: "cap" },
    element("span", { class: "cap-name" }, cap.name),
    element("span", { class: "badge state" }),
    element("span", { class: "cap-figures" }),
    element("span", { class: "bar", "aria-hidden": "true" }, element("i", { class: "bar-committed" }), element("i", { class: "bar-measured" })),
    element("span", { class: "cap-more" }),
  );
  card.addEventListener("click", () => onChoose(cap.name));
  return card;
}

function updateCap(card, cap, leads, pressed) {
  const [kind, word, why] = capState(cap, leads);
  const part = (name) => card.querySelector(name);
  setAttribute(card, "aria-pressed", String(pressed));
  setAttribute(part(".state"), "data-state", kind);
  setText(part(".state"), `${SIGNS[kind]} ${word}`);
  const measured = cap.measured?.watts ?? null;
  setText(part(".cap-figures"), `${watts(measured)} measured · ${watts(cap.committedWatts)} committed · cap ${watts(cap.inForceWatts)}`);
  const share = (value) => (value === null || !cap.inForceWatts ? 0 : Math.min(100, (100 * value) / cap.inForceWatts));
  part(".bar-committed").style.width = `${share(cap.committedWatts ?? null)}%`;
  part(".bar-measured").style.width = `${share(measured)}%`;
  setAttribute(part(".bar"), "data-state", kind);
  setText(part(".cap-more"), more(cap, kind, why));
  setAttribute(card, "title", why);
}

function more(cap, kind, why) {
  const parts = [];
  if (cap.headroomWatts && kind === "good") parts.push(`${watts(cap.headroomWatts)} to give`);
  if (cap.targetWatts !== null && cap.targetWatts !== undefined && cap.inForceWatts !== null && cap.targetWatts !== cap.inForceWatts) parts.push(`${watts(cap.targetWatts)} asked for`);
  if (cap.schedule) parts.push(`schedule ${cap.schedule}`);
  if (cap.meterState) parts.push(`meter ${cap.meterState.toLowerCase()}`);
  if (cap.measured?.source && cap.measured.source !== "agents") parts.push(`by ${cap.measured.source}`);
  if (cap.period) parts.push(`${energy(cap.period.consumedKilojoules)} of ${energy(cap.period.budgetKilojoules)} in this ${duration(cap.period.seconds)}`);
  if (cap.breach) {
    const until = parseTime(cap.breach.until);
    parts.push(until === null ? `breached since ${time(parseTime(cap.breach.since))}` : `last breached until ${time(until)}`);
  }
  if (cap.deleting) parts.push("deleted, and still held");
  if (kind !== "good") parts.unshift(why);
  return parts.join(" · ");
}
