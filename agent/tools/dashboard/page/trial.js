// Trying a pod: a dry run, its placement on the map, or why it would be rejected and what would help.

import { byId, element, idsOf } from "./elements.js";
import { nameOf } from "./map.js";
import { detailsOf } from "./pods.js";

const EXAMPLES = [
  ["Two CPUs of its own", `apiVersion: v1
kind: Pod
metadata:
  name: example
spec:
  containers:
  - name: main
    image: example.com/main
    resources:
      requests: {cpu: "2", memory: 1Gi}
      limits: {cpu: "2", memory: 1Gi}
`],
  ["A budget for the pod", `apiVersion: v1
kind: Pod
metadata:
  name: example
spec:
  resources:
    requests: {cpu: "4", memory: 4Gi}
    limits: {cpu: "4", memory: 4Gi}
  containers:
  - name: database
    image: example.com/database
    resources:
      requests: {cpu: "2", memory: 2Gi}
      limits: {cpu: "2", memory: 2Gi}
  - name: metrics
    image: example.com/metrics
`],
  ["A large pod", `apiVersion: v1
kind: Pod
metadata:
  name: example
spec:
  containers:
  - name: main
    image: example.com/main
    resources:
      requests: {cpu: "64", memory: 64Gi}
      limits: {cpu: "64", memory: 64Gi}
`],
];

export class Trial {
  #agent;
  #map;
  #select;
  #outcome = byId("outcome");

  constructor(agent, map, select) {
    this.#agent = agent;
    this.#map = map;
    this.#select = select;
    const manifest = byId("manifest");
    [[, manifest.value]] = EXAMPLES;
    byId("examples").append(...EXAMPLES.map(([name, text]) =>
      element("button", { type: "button", onclick: () => { manifest.value = text; this.#clear(); } }, name)));
    byId("trial").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#try();
    });
    manifest.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.#try();
    });
  }

  async #try() {
    const button = byId("try");
    if (button.disabled) return;
    button.disabled = true;
    this.#outcome.setAttribute("aria-busy", "true");
    try {
      const answer = await this.#agent.tryPod(byId("manifest").value);
      if (answer.admitted) this.#admitted(answer);
      else this.#rejected(answer);
    } catch (error) {
      this.#failed(error);
    } finally {
      button.disabled = false;
      this.#outcome.removeAttribute("aria-busy");
    }
  }

  #clear() {
    this.#show("", []);
  }

  #show(tone, content, cpus = []) {
    this.#outcome.dataset.tone = tone;
    this.#outcome.replaceChildren(...content.filter((each) => each !== null));
    this.#map.preview(cpus);
  }

  #admitted({ pod, alreadyAdmitted, explanation }) {
    const cpus = idsOf(pod.exclusiveCpus);
    const title = alreadyAdmitted ? `${nameOf(pod)} is admitted already` : `${nameOf(pod)} would be admitted`;
    const place = cpus.length
      ? `On CPUs ${pod.exclusiveCpus.replaceAll(",", ", ")}, which are ringed on the map.`
      : `In the ${pod.pool ? `pool ${pod.pool}` : "node's shared pool"}: no CPUs of its own.`;
    const warnings = (explanation?.warnings ?? []).map((text) => element("li", { class: "warn" }, text));
    const verdict = element("ul", { class: "verdict" }, ...pod.verdict.map((each) =>
      element("li", { class: each.met ? "good" : "warn" },
        `${each.container}: ${each.met ? "" : "not "}${each.quality}${each.why ? `, ${each.why}` : ""}`)));
    const [table] = detailsOf(pod);
    this.#show("good", [element("h3", {}, title), element("p", {}, place), table, verdict,
      warnings.length ? element("ul", { class: "remarks" }, ...warnings) : null], cpus);
  }

  #rejected(answer) {
    const { rejection } = answer;
    const advice = rejection.advice ?? [];
    const none = rejection.advice === null ? rejection.remedy
      : "None of the changes that were tried would let it in.";
    const help = advice.length
      ? [element("h4", {}, "It would be admitted, each tried:"),
        element("ul", { class: "advice" }, ...advice.map((each) => this.#advice(each)))]
      : [element("p", { class: "no-advice" }, none)];
    this.#show("bad", [
      element("h3", {}, `${nameOf(answer)} would be rejected`),
      element("p", {}, element("strong", { class: "reason" }, rejection.reason), ` ${rejection.message}`),
      ...help,
    ]);
  }

  #advice(advice) {
    const made = element("li", { "data-kind": advice.kind }, advice.text);
    if (advice.loss) made.append(element("span", { class: "loss" }, ` It would lose: ${advice.loss}`));
    if (advice.uids.length) {
      const [uid] = advice.uids;
      made.append(" ", element("button", { type: "button", class: "link",
        onclick: () => this.#select(uid) }, "Show the pod"));
    }
    return made;
  }

  #failed(error) {
    const details = (error.details ?? []).filter((each) => each.message !== error.message);
    this.#show("bad", [
      element("h3", {}, "No decision"),
      element("p", {}, error.message),
      details.length ? element("ul", { class: "mistakes" }, ...details.map((each) =>
        element("li", {}, each.path ? element("code", {}, each.path) : null, ` ${each.message}`))) : null,
    ]);
  }
}
