// The panels around the map: state, summary, conditions and events.

import { byId, counted, element, idsOf, renderList, setText, sizeText, timeElement } from "./elements.js";

// The most events that are listed; the oldest go first.
const MOST_EVENTS = 300;
const BAD_EVENTS = new Set(["PodRejected", "PodInvalid", "PodNotEnforced", "DriftFound", "DriftContested",
  "AllocationInvalid", "ManifestInvalid", "EventsLost", "AllocationDisplaced"]);
const GOOD_EVENTS = new Set(["PodAdmitted", "ContainerBound", "PodRecovered"]);

/** Say in the page's head whether the page follows the agent: `live`, `waiting`, `lost`. */
export function showState(state, text) {
  const shown = byId("state");
  shown.dataset.state = state;
  setText(shown, text);
}

/** Show a text across the page, "" for none. */
export function showBanner(text) {
  const banner = byId("banner");
  setText(banner, text);
  banner.hidden = text === "";
}

export function showPolicies(status) {
  setText(byId("version"), status.version);
  const { policy } = status;
  const shown = [
    ["CPU", policy.cpuManagerPolicy],
    ["Memory", policy.memoryManagerPolicy],
    ["Topology", policy.topologyManagerPolicy],
    ["Scope", policy.topologyManagerScope],
  ];
  renderList(byId("policies"), shown, ([name]) => name, (each) => each.join(), ([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value)));
}

/** Show the figures of the host: what is allocated of what pods may have. */
export function showFigures(picture, status) {
  const { map } = picture;
  const online = map.cpus.filter((cpu) => cpu.use !== "offline");
  const reserved = online.filter((cpu) => cpu.use === "reserved").length;
  const allocated = online.filter((cpu) => cpu.owners.length > 0).length;
  const figures = [figure("CPUs allocated", allocated, online.length - reserved,
    `of ${online.length - reserved}`)];
  const memory = map.nodes.flatMap((node) => node.memory.filter((each) => each.type === "memory"));
  if (memory.some((each) => each.allocated !== null)) {
    const usable = memory.reduce((sum, each) => sum + (each.total ?? 0) - each.reserved, 0);
    const taken = memory.reduce((sum, each) => sum + (each.allocated ?? 0), 0);
    figures.push(figure("Memory allocated", taken, usable, `of ${sizeText(usable)}`, sizeText(taken)));
  }
  const offered = Map.groupBy(map.devices.filter((device) => device.kind === "resource"),
    (device) => device.resource);
  for (const [resource, members] of [...offered].slice(0, 3)) {
    const taken = members.filter((device) => device.owner !== null || device.pod).length;
    figures.push(figure(resource, taken, members.length, `of ${members.length}`));
  }
  figures.push(figure("Shared pool", idsOf(status.sharedPool).length, 0, "CPUs"));
  figures.push(figure("Pods", status.pods, 0, `with ${counted(status.containers, "container")}`));
  renderList(byId("figures"), figures, (each) => each.name, (each) => JSON.stringify(each), figureElement);
}

function figure(name, value, of, unit, text = String(value)) {
  return { name, share: of ? value / of : null, text, unit };
}

function figureElement({ name, share, text, unit }) {
  const value = element("p", { class: "value" }, element("strong", {}, text), ` ${unit}`);
  const made = element("div", { class: "figure" }, element("p", { class: "name" }, name), value);
  if (share !== null) {
    const bar = element("span", { class: "gauge", "aria-hidden": "true" }, element("span", {}));
    bar.firstChild.style.setProperty("--share", `${100 * share}%`);
    made.append(bar);
  }
  return made;
}

/** Show what is not as it should be: conditions of the agent, and warnings of the map. */
export function showConditions(status, map, select) {
  const conditions = status.conditions.map((each) => ({
    tone: "bad", title: each.type, reason: each.reason, text: each.message, remedy: each.remedy,
    since: each.since, uids: each.uid ? [each.uid] : [],
  }));
  const warnings = map.warnings.map((each) => ({
    tone: "warn", title: each.reason, reason: "", text: each.message, remedy: "", since: 0,
    uids: each.uids,
  }));
  const all = [...conditions, ...warnings];
  const more = map.moreWarnings ?? 0;
  const list = byId("conditions");
  renderList(list, all, (each) => [each.title, each.reason, each.text].join("|"),
    (each) => JSON.stringify(each), (each) => conditionElement(each, select));
  const count = all.length + more;
  setText(byId("conditions-count"), String(count));
  byId("conditions-card").dataset.tone = conditions.length ? "bad" : all.length ? "warn" : "good";
  if (!all.length) {
    const text = status.ready ? "All is as it should be." : "The agent is not ready yet.";
    list.append(element("li", { class: status.ready ? "good" : "warn" }, text));
  } else if (more) {
    list.append(element("li", { class: "warn" }, `and ${counted(more, "warning")} more`));
  }
}

function conditionElement(condition, select) {
  const { tone, title, reason, text, remedy, since, uids } = condition;
  const head = element("p", { class: "condition-head" }, element("strong", {}, title),
    reason ? element("span", { class: "reason" }, reason) : null,
    since ? timeElement(since) : null);
  const made = element("li", { class: tone }, head, element("p", {}, text),
    remedy ? element("p", { class: "remedy" }, remedy) : null);
  if (uids.length) {
    made.append(element("button", { type: "button", class: "link", onclick: () => select(uids[0]) },
      "Show the pod"));
  }
  return made;
}

/** Say who asked for what an entry of the history records. */
function requesterText({ source, uid, pid, command }) {
  return pid === null ? `by ${source}` : `by uid ${uid}, ${command || "process"}[${pid}]`;
}

export class EventLog {
  #list = byId("events");
  #select;

  constructor(select) {
    this.#select = select;
  }

  /** Say from when on there are events. */
  since(text) {
    setText(byId("events-since"), text);
  }

  /** Add events, of which the latest is the last; the list has the latest first. */
  add(events) {
    for (const event of events) this.#list.prepend(this.#element(event));
    while (this.#list.children.length > MOST_EVENTS) this.#list.lastElementChild.remove();
  }

  #element(event) {
    const tone = BAD_EVENTS.has(event.type) ? "bad" : GOOD_EVENTS.has(event.type) ? "good" : "note";
    const pod = event.uid
      ? element("button", { type: "button", class: "link", onclick: () => this.#select(event.uid) },
        event.pod || event.uid)
      : event.pod || null;
    return element("li", { class: tone }, timeElement(event.time),
      element("strong", {}, event.type), pod,
      event.message ? element("span", { class: "message" }, event.message) : null,
      event.requester ? element("span", { class: "message" }, requesterText(event.requester)) : null);
  }
}
