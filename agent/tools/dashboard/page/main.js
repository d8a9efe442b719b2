// The page: follows the agent's events, and asks again for what they may have changed; or shows what
// was saved into it.

import { Agent, AnswerError, savedAnswers, takeToken } from "./agent.js";
import { byId, counted, element, renderList, setAttribute, setText, timeText } from "./elements.js";
import { Labels } from "./labels.js";
import { MapView } from "./map.js";
import { EventLog, showBanner, showConditions, showFailed, showFigures, showHost, showPolicies, showState } from "./panels.js";
import { PodList } from "./pods.js";
import { Trial } from "./trial.js";

// Containers are found, and memory is charged, without an event.
const ASK_AGAIN_MS = 5_000;
// Events that come together are answered together.
const GATHER_MS = 30;
// Times of updates that the browser's developer tools show, until they are forgotten.
const MOST_MEASURES = 500;
const RETRY_MS = [500, 1_000, 2_000, 5_000];
const NO_TOKEN = "Open the whole address that `numawarden dashboard` printed: it has the token.";

const LEGEND = [
  ["use-exclusive hue0", "A", "exclusive to a container", (cpu) => cpu.use === "exclusive"],
  ["use-pod hue0", "a", "a pod's shared pool", (cpu) => cpu.use === "pod"],
  ["use-shared", "·", "the node's shared pool", (cpu) => cpu.use === "shared"],
  ["use-cordoned cordoned", "/", "cordoned: nothing new", (cpu) => cpu.cordoned],
  ["use-reserved", "R", "reserved", (cpu) => cpu.use === "reserved"],
  ["use-offline", "×", "offline", (cpu) => cpu.use === "offline"],
  ["use-withheld", "-", "withheld by another cgroup", (cpu) => cpu.use === "withheld"],
  ["use-shared isolated", "i", "isolated", (cpu) => cpu.isolated],
  ["use-shared mixed", "·", "core with several users", (cpu, mixed) => mixed.has(cpu.id)],
  ["use-exclusive twice", "*", "allocated twice", (cpu) => cpu.owners.length > 1],
];
const PATTERNED = ["use-exclusive hue0 pattern1", "J", "a corner or an edge: another pod of that colour"];

class Page {
  #agent;
  #labels = new Labels();
  #select = (uid) => this.select(uid);
  #map = new MapView(byId("parts"), byId("readout"), this.#labels, this.#select);
  #pods = new PodList(this.#labels, this.#select);
  #events = new EventLog(this.#select);
  #selected = null;
  #asking = false;
  #again = false;
  #gathering = 0;
  #following = false;
  #ended = false;

  constructor() {
    this.#drawSizes();
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.select(null);
    });
  }

  /** Select a pod everywhere; null ends the selection. */
  select(uid) {
    if (uid === this.#selected) return;
    this.#selected = uid;
    this.#map.select(uid);
    this.#pods.select(uid);
    if (uid !== null) this.#ask();
  }

  /** Show what was saved: nothing of it changes, and no agent tries a pod. */
  showSaved({ picture, pods, status, history }) {
    byId("trial-card").remove();
    this.#show(picture, pods, status);
    if (history === null) byId("events-card").remove();
    else this.#showPast(history, history.more ? "the latest" : "");
  }

  /** Follow the agent for as long as the page is open. */
  async follow(agent) {
    this.#agent = agent;
    new Trial(agent, this.#map, this.#select);
    document.addEventListener("visibilitychange", () => this.#ask());
    setInterval(() => this.#ask(), ASK_AGAIN_MS);
    await this.#showHistory();
    for (let failed = 0; !this.#ended; failed += 1) {
      try {
        await this.#agent.watch(() => {
          failed = 0;
          this.#following = true;
          this.#ask();
        }, (event) => this.#heard(event));
        this.#lost("The agent has ended its events. The page shows what it was before.");
      } catch (error) {
        this.#failed(error);
      }
      this.#following = false;
      await new Promise((done) => { setTimeout(done, RETRY_MS[Math.min(failed, RETRY_MS.length - 1)]); });
    }
  }

  async #showHistory() {
    const now = timeText(Date.now() / 1000);
    this.#events.since(`since ${now}`);
    try {
      const past = await this.#agent.history();
      if (past !== null) this.#showPast(past, past.more ? "the latest, and as they happen" : "as they happen");
    } catch (error) {
      this.#failed(error);
    }
  }

  #showPast({ entries }, since) {
    this.#events.add(entries.toReversed());
    this.#events.since(since);
  }

  #heard(event) {
    this.#events.add([event]);
    clearTimeout(this.#gathering);
    this.#gathering = setTimeout(() => this.#ask(), GATHER_MS);
  }

  /** Ask for all documents and show them; at most one question is under way, and one waits. */
  async #ask() {
    if (this.#ended || !this.#following || document.hidden) return;
    if (this.#asking) {
      this.#again = true;
      return;
    }
    this.#asking = true;
    try {
      const uid = this.#selected;
      const [picture, pods, status, slow] = await Promise.all([this.#agent.picture(), this.#agent.pods(),
        this.#agent.status(), uid === null ? null : this.#agent.slowness(uid)]);
      this.#show(picture, pods.map((pod) => (pod.uid === uid ? { ...pod, slow } : pod)), status);
      showBanner("");
      showState(status.ready ? "live" : "waiting", status.ready ? "live" : "agent not ready");
    } catch (error) {
      this.#failed(error);
    } finally {
      this.#asking = false;
      if (this.#again) {
        this.#again = false;
        this.#ask();
      }
    }
  }

  #show(picture, pods, status) {
    const start = performance.now();
    const { map } = picture;
    const owners = new Set(map.cpus.flatMap((cpu) => cpu.owners.map((owner) => owner.uid)));
    this.#labels.assign(map.pods.map((pod) => pod.uid).filter((uid) => owners.has(uid)));
    if (this.#selected !== null && !map.pods.some((pod) => pod.uid === this.#selected)) this.select(null);
    const changed = this.#map.update(picture);
    this.#pods.update(pods, map);
    showPolicies(status);
    showFigures(picture, status);
    showConditions(status, map, this.#select);
    showFailed(status);
    this.#showSize(map, new Set(picture.sharedCores));
    showHost(map);
    // To the frame after the next one: the first is drawn from what was changed here.
    requestAnimationFrame(() => setTimeout(() => {
      if (performance.getEntriesByType("measure").length > MOST_MEASURES) performance.clearMeasures();
      performance.measure("update", { start, end: performance.now(), detail: { changed } });
    }));
  }

  #showSize(map, mixed) {
    const packages = new Set(map.cpus.map((cpu) => cpu.package).filter((each) => each !== null));
    const cores = new Set(map.cpus.filter((cpu) => cpu.use !== "offline").map((cpu) => cpu.core));
    const said = [counted(map.cpus.length, "CPU"), counted(cores.size, "core"),
      packages.size ? counted(packages.size, "package") : "", counted(map.nodes.length, "node")];
    setAttribute(byId("columns"), "data-size", this.#map.size);
    setText(byId("map-size"), said.filter(Boolean).join(", "));
    const shown = LEGEND.filter(([, , , applies]) => map.cpus.some((cpu) => applies(cpu, mixed)));
    if (this.#labels.repeated) shown.push(PATTERNED);
    renderList(byId("legend"), shown, ([classes]) => classes, () => "", ([classes, sign, text]) =>
      element("li", {}, element("span", { class: `cpu ${classes}`, "aria-hidden": "true" }, sign), text));
    for (const button of byId("sizes").querySelectorAll("button")) {
      setAttribute(button, "aria-pressed", String(button.value === this.#map.size));
    }
  }

  #drawSizes() {
    byId("sizes").append(...this.#map.sizes.toReversed().map(({ name, title }) =>
      element("button", { type: "button", value: name, title: `${name} CPUs`, "aria-label": `${name} CPUs`,
        "aria-pressed": "false", onclick: (event) => {
          this.#map.resize(name);
          for (const each of byId("sizes").querySelectorAll("button")) {
            setAttribute(each, "aria-pressed", String(each === event.currentTarget));
          }
        } }, title)));
  }

  #failed(error) {
    if (error instanceof AnswerError && error.status === 401) {
      this.#ended = true;
      showState("lost", "no access");
      showBanner(NO_TOKEN);
      return;
    }
    this.#lost(error.message);
    if (!(error instanceof AnswerError)) console.warn(error);
  }

  #lost(text) {
    showState("lost", "not connected");
    showBanner(text);
  }
}

const saved = savedAnswers();
if (saved === null) new Page().follow(new Agent(takeToken()));
else new Page().showSaved(saved);
