// The list of pods: whose letter is whose, what each has, and what is second-best about it.

import { byId, counted, element, renderList, setText, sizeText } from "./elements.js";
import { nameOf } from "./map.js";

// Longer lists are cut: the filter finds the others.
const MOST_SHOWN = 60;

export class PodList {
  #labels;
  #select;
  #pods = [];
  #missing = new Map();
  #selected = null;

  constructor(labels, select) {
    this.#labels = labels;
    this.#select = select;
    byId("filter").addEventListener("input", () => this.#render());
  }

  update(pods, map) {
    this.#pods = pods;
    this.#missing = new Map(map.pods.filter((pod) => pod.notFound.length)
      .map((pod) => [pod.uid, `${pod.notFound.length} ${pod.absence}`]));
    this.#render();
  }

  select(uid) {
    this.#selected = uid;
    this.#render();
    const chosen = byId("pods").querySelector("[aria-expanded=true]");
    chosen?.closest("li").scrollIntoView({ block: "nearest" });
  }

  #render() {
    const text = byId("filter").value.trim().toLowerCase();
    const found = this.#pods.filter((pod) =>
      pod.uid === this.#selected || nameOf(pod).toLowerCase().includes(text) || pod.uid === text);
    const listed = found.slice(0, MOST_SHOWN);
    const chosen = found.find((pod) => pod.uid === this.#selected);
    if (chosen && !listed.includes(chosen)) listed.unshift(chosen);
    renderList(byId("pods"), listed, (pod) => pod.uid, (pod) => this.#sign(pod), (pod) => this.#item(pod));
    setText(byId("pods-count"), String(this.#pods.length));
    const rest = found.length - listed.length;
    let more = rest > 0 ? `and ${counted(rest, "pod")} more: filter by name` : "";
    if (!this.#pods.length) more = "No pod is admitted.";
    else if (!found.length) more = "No pod has such a name.";
    setText(byId("pods-more"), more);
  }

  #sign(pod) {
    const chosen = pod.uid === this.#selected;
    const all = chosen ? JSON.stringify(pod) : "";
    const { enforcement, verdict } = pod;
    return [chosen, this.#labels.text(pod.uid), pod.name, pod.exclusiveCpus, enforcement.enforced,
      pod.intruding.length, verdict.map((each) => each.met).join(), this.#missing.get(pod.uid), pod.invalid.length,
      memoryOf(pod), all].join("\n");
  }

  #item(pod) {
    const chosen = pod.uid === this.#selected;
    const id = `pod-${pod.uid}`;
    const button = element("button", { type: "button", class: "pod", "aria-expanded": String(chosen),
      "aria-controls": chosen ? id : null, onclick: () => this.#select(chosen ? null : pod.uid) },
      element("span", { class: `swatch ${this.#labels.classes(pod.uid)}`, "aria-hidden": "true" },
        this.#labels.text(pod.uid)),
      element("span", { class: "pod-name" }, nameOf(pod)),
      element("span", { class: "pod-has" }, summaryOf(pod)),
      badges(pod, this.#missing.get(pod.uid)));
    return element("li", { class: chosen ? "chosen" : "" }, button,
      chosen ? element("div", { class: "details", id }, ...detailsOf(pod)) : null);
  }
}

function summaryOf(pod) {
  const shared = pod.pool ? `pool ${pod.pool}` : "shared pool";
  const cpus = pod.exclusiveCpus ? `CPUs ${pod.exclusiveCpus.replaceAll(",", ", ")}` : shared;
  return [cpus, memoryOf(pod)].filter(Boolean).join(" · ");
}

function memoryOf(pod) {
  const blocks = [...pod.memory, ...pod.containers.flatMap((container) => container.memory)];
  const bytes = (pod.memory.length ? pod.memory : blocks)
    .filter((block) => block.type === "memory").reduce((sum, block) => sum + block.bytes, 0);
  const nodes = [...new Set(blocks.map((block) => block.nodes))].join(", ");
  return bytes ? `${sizeText(bytes)} on node ${nodes}` : "";
}

/** Return what an operator should see of a pod: qualities that are missing, and what is not done. */
function badges(pod, missing) {
  const made = [];
  const badge = (tone, text) => made.push(element("span", { class: `badge ${tone}` }, text));
  const lacking = new Set(pod.verdict.filter((each) => !each.met).map((each) => each.quality));
  const met = new Set(pod.verdict.filter((each) => each.met).map((each) => each.quality));
  if (!pod.enforcement.enforced) badge("bad", "not enforced");
  // What intrudes makes all of the pod not exclusive, whatever its containers share.
  if (pod.intruding.length) {
    badge("bad", "not exclusive");
    lacking.delete("exclusive");
    met.delete("exclusive");
  }
  if (pod.invalid.length) badge("bad", "invalid");
  if (missing) badge("warn", missing);
  for (const quality of met) if (!lacking.has(quality)) badge("good", quality);
  for (const quality of lacking) badge("warn", `not ${quality}`);
  return element("span", { class: "badges" }, ...made);
}

/** Return the parts of a pod's details: its containers, and all that deserves a look. */
export function detailsOf(pod) {
  const rows = pod.containers.map((container) => element("tr", {},
    element("th", { scope: "row" }, container.name, container.kind === "app" ? null
      : element("span", { class: "kind" }, ` ${container.kind}`)),
    element("td", {}, container.cpus.replaceAll(",", ", ") || "none",
      element("span", { class: "kind" }, ` ${sharingOf(pod, container)}`)),
    element("td", {}, container.mems ?? "any")));
  const table = element("table", {},
    element("thead", {}, element("tr", {}, ...["Container", "CPUs", "Nodes"].map((name) =>
      element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows));
  const remarks = [
    ...pod.intruding.map((each) => ["bad", `not exclusive: ${each.message}`]),
    ...pod.enforcement.differences.map((text) => ["bad", text]),
    ...pod.invalid.map((each) => ["bad", `${each.message}; ${each.remedy}`]),
    ...pod.verdict.filter((each) => !each.met && !(each.quality === "exclusive" && pod.intruding.length))
      .map((each) => ["warn", `${each.container}: not ${each.quality}, ${each.why}`]),
    ...slowRemarks(pod.slow),
    ...pod.unusedBudget.map((each) => ["note", unusedText(each)]),
    ...pod.enforcement.notes.map((text) => ["note", text]),
  ];
  const list = remarks.map(([tone, text]) => element("li", { class: tone }, text));
  return [table, list.length ? element("ul", { class: "remarks" }, ...list) : null,
    element("p", { class: "uid" }, `uid ${pod.uid} · ${pod.qos}`)];
}

// What other remarks say already.
const SAID = new Set(["not_aligned", "far_device", "shared_cores", "intruders"]);

/** Return what makes a pod slow; nothing where it was not read, as in a saved page. */
function slowRemarks(slow) {
  if (!slow) return [];
  const found = slow.causes.filter((each) => !SAID.has(each.cause)).map(({ container, cause, message }) =>
    ["warn", `slow: ${container ? `${container} ` : ""}${cause.replaceAll("_", " ")}: ${message}`]);
  if (!slow.causes.length) found.push(["note", "nothing the agent sees makes it slow"]);
  if (slow.unknown.length) found.push(["note", `no cgroup of a container has ${slow.unknown.join(", ")}`]);
  return found;
}

const POOLS = { container: "exclusive", pod: "pod's pool", host: "node's pool" };

function sharingOf(pod, container) {
  const isolation = container.isolation;
  return isolation === "host" && pod.pool ? `pool ${pod.pool}` : POOLS[isolation] ?? isolation;
}

function unusedText(unused) {
  if (unused.resource === "cpu") return `no container can use CPUs ${unused.cpus} of the budget`;
  return `no container can use ${sizeText(unused.unused)} of the budget's ${unused.resource}`;
}
