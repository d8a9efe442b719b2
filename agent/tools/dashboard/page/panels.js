// The panels around the map: state, summary, conditions and events.

import { byId, counted, element, idsOf, renderList, setText, sizeText, timeElement } from "./elements.js";
import { nameOf } from "./map.js";

// The most events that are listed; the oldest go first.
const MOST_EVENTS = 300;
const BAD_EVENTS = new Set(["PodRejected", "PodInvalid", "PodNotEnforced", "PodNotExclusive", "DriftFound", "DriftContested",
  "AllocationInvalid", "ManifestInvalid", "EventsLost", "AllocationDisplaced", "PodResizeRejected", "PodMoveRejected"]);
const GOOD_EVENTS = new Set(["PodAdmitted", "PodResized", "PodMoved", "ContainerBound", "PodRecovered"]);

// So many pods that are not admitted are shown.
const FEW_FAILED = 5;
// Up to so many conditions are shown one by one, more by their type.
const FEW_CONDITIONS = 6;
const MOST_OF_A_TYPE = 50;
// So many warnings of a reason a map lists.
const LISTED_OF_A_REASON = 32;
const openTypes = new Set();

/** Say which host this is and as of when, in the page's head and the title of the window. */
export function showHost({ hostname, time }) {
  setText(byId("host"), hostname);
  byId("as-of").replaceChildren("as of ", timeElement(time));
  document.title = hostname ? `${hostname} · Numawarden` : "Numawarden";
}

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
  const online = map.cpus.filter((cpu) => !["offline", "withheld"].includes(cpu.use));
  const allocated = online.filter((cpu) => cpu.owners.length > 0).length;
  const usable = allocated + online.filter((cpu) => ["free", "shared"].includes(cpu.use)).length;
  const figures = [figure("CPUs allocated", allocated, usable, `of ${usable}`)];
  const cordoned = online.filter((cpu) => cpu.cordoned).length;
  if (cordoned) figures.push(figure("Cordoned", cordoned, 0, "CPUs"));
  const memory = map.nodes.flatMap((node) => node.memory.filter((each) => each.type === "memory"));
  if (memory.some((each) => each.allocated !== null)) {
    const room = memory.reduce((sum, each) => sum + (each.total ?? 0) - each.reserved, 0);
    const taken = memory.reduce((sum, each) => sum + (each.allocated ?? 0), 0);
    figures.push(figure("Memory allocated", taken, room, `of ${sizeText(room)}`, sizeText(taken)));
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

const OF_PODS = new Set(["NotExclusive", "NotStarted", "NotFound", "AllocationInvalid"]);

/** Show what is not as it should be: conditions of the agent, cordons, and warnings of the map. */
export function showConditions(status, map, select) {
  const conditions = status.conditions.map((each) => ({
    tone: "bad", title: each.type, reason: each.reason, text: each.message, remedy: each.remedy,
    since: each.since, uids: each.uid ? [each.uid] : [],
  }));
  const cordons = status.cordons.map((each) => ({
    tone: "warn", title: "Cordoned", reason: "", text: cordonText(each), since: each.since, uids: [],
    remedy: "numawarden uncordon ends it",
  }));
  // Those of pods are conditions of the agent already.
  const warnings = map.warnings.filter((each) => !OF_PODS.has(each.reason)).map((each) => ({
    tone: "warn", title: each.reason, reason: "", text: each.message, remedy: "", since: 0,
    uids: each.uids,
  }));
  const all = [...conditions, ...cordons, ...warnings];
  const more = warnings.length < LISTED_OF_A_REASON ? 0 : map.moreWarnings ?? 0;
  const count = all.length + more;
  const others = count - conditions.length;
  setText(byId("conditions-count"), others ? `${conditions.length}, and ${counted(others, "note")}` : String(count));
  byId("conditions-card").dataset.tone = conditions.length ? "bad" : all.length ? "warn" : "good";
  byId("conditions-filter-label").hidden = count <= FEW_CONDITIONS;
  const filter = byId("conditions-filter");
  const render = () => renderConditions(all, more, status.ready, filter.value, select);
  filter.oninput = render;
  render();
}

/** Show the latest pods that are not admitted, and why. */
export function showFailed({ failed }) {
  const latest = failed.slice(-FEW_FAILED).toReversed();
  renderList(byId("failed"), latest, (pod) => `${pod.uid} ${pod.time}`, () => "", (pod) => element("li", { class: "warn" },
    element("p", { class: "condition-head" }, element("strong", {}, pod.name ? nameOf(pod) : pod.uid || "a pod without a name"),
      element("span", { class: "reason" }, pod.reason), timeElement(pod.time)),
    element("p", {}, pod.message)));
}

/** Render those that have a text, by type: many of a type are behind a line with their number. */
function renderConditions(all, more, ready, filter, select) {
  const text = all.length > FEW_CONDITIONS ? filter.trim().toLowerCase() : "";
  const found = all.filter((each) => [each.title, each.reason, each.text].join(" ").toLowerCase().includes(text));
  const types = [...Map.groupBy(found, (each) => each.title)].map(([title, members]) => ({ title, members, more: more > 0 && members.length >= LISTED_OF_A_REASON }));
  const items = types.flatMap((type) => (all.length > FEW_CONDITIONS && type.members.length > 1 ? [type] : type.members));
  if (!all.length) items.push({ tone: ready ? "good" : "warn", plain: ready ? "All is as it should be." : "The agent is not ready yet." });
  else if (more && !text) items.push({ tone: "warn", plain: `and ${counted(more, "warning")} more` });
  else if (!found.length) items.push({ tone: "warn", plain: "No condition has such a text." });
  renderList(byId("conditions"), items, (each) => [each.title, each.members ? "*" : each.text, each.reason, each.plain].join("|"),
    (each) => JSON.stringify(each), (each) => {
      if (each.plain) return element("li", { class: each.tone }, each.plain);
      return each.members ? typeElement(each, select) : conditionElement(each, select);
    });
}

/** Return all conditions of a type behind their number; it stays open while the page does. */
function typeElement({ title, members, more }, select) {
  const shown = members.slice(0, MOST_OF_A_TYPE).map((each) => conditionElement(each, select));
  if (members.length > shown.length) {
    shown.push(element("li", { class: members[0].tone }, `and ${members.length - shown.length} more: filter them`));
  }
  const details = element("details", { open: openTypes.has(title) },
    element("summary", {}, element("strong", {}, title), ` ${members.length}${more ? " and more" : ""}`),
    element("ul", { class: "of-type" }, ...shown));
  details.addEventListener("toggle", () => openTypes[details.open ? "add" : "delete"](title));
  return element("li", { class: `type ${members[0].tone}` }, details);
}

function cordonText({ cpus, nodes, reason }) {
  const what = [nodes && `node ${nodes}`, cpus && `CPUs ${cpus}`].filter(Boolean).join(", ");
  return reason ? `${what}: ${reason}` : what;
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
function requesterText({ source, uid, pid, command, login }) {
  if (pid === null) return `by ${source}`;
  const person = (login ?? uid) === uid ? "" : ` (logged in as ${login})`;
  return `by uid ${uid}${person}, ${command || "process"}[${pid}]`;
}

export class EventLog {
  #list = byId("events");
  #filter = byId("events-filter");
  #select;

  constructor(select) {
    this.#select = select;
    this.#filter.addEventListener("input", () => this.#show());
  }

  /** Say from when on there are events. */
  since(text) {
    setText(byId("events-since"), text);
  }

  /** Add events, of which the latest is the last; the list has the latest first. */
  add(events) {
    for (const event of events) this.#list.prepend(this.#element(event));
    while (this.#list.children.length > MOST_EVENTS) this.#list.lastElementChild.remove();
    this.#show();
  }

  /** Show the events that have the filter's text. */
  #show() {
    const text = this.#filter.value.trim().toLowerCase();
    for (const event of this.#list.children) event.hidden = !event.textContent.toLowerCase().includes(text);
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
