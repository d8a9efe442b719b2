// The map: nested parts, cores as columns of threads, one element for each CPU.

import { counted, element, idsOf, setAttribute, setText } from "./elements.js";
import { nodeDetails } from "./nodes.js";

// Sizes of CPUs: the narrowest column and its gap in pixels, and the most CPUs it is chosen for.
const SIZES = [
  { name: "large", title: "L", width: 42, gap: 6, most: 80 },
  { name: "medium", title: "M", width: 24, gap: 3, most: 700 },
  { name: "small", title: "S", width: 9, gap: 2, most: Infinity },
];
const SIGNS = { offline: "×", withheld: "-", cordoned: "/", reserved: "R", free: "·", shared: "·", online: "·" };
const USES = {
  offline: "offline",
  withheld: "withheld from pods by another cgroup",
  cordoned: "free, but cordoned",
  reserved: "reserved",
  free: "free for exclusive use",
  shared: "in the node's shared pool",
  online: "online",
};
// What no pod runs on, whatever a pod was given.
const NOT_THERE = ["offline", "withheld"];
// More changes than these at once are not shown one by one.
const MOST_FLASHES = 64;
const HINT = matchMedia("(pointer: coarse)").matches
  ? "Tap a CPU to see whose it is."
  : "Point at a CPU, or move over them with the arrow keys, to see whose it is.";

export class MapView {
  #root;
  #readout;
  #labels;
  #select;
  #cells = new Map(); // the element and document of each CPU, by id, in the order of the map
  #leaves = []; // the elements that have cores, with their number of columns
  #nodes = new Map(); // where the memory and devices of a node are shown
  #names = new Map(); // namespace/name by uid
  #shared = new Set(); // CPUs of cores with several users
  #picture = null;
  #structure = "";
  #outermost = []; // the elements of the outermost parts, then of nodes without CPUs
  #folds = "";
  #size = null; // null: by the number of CPUs
  #current = null; // the CPU that the Tab key leads to
  #selected = null;
  #preview = new Map();

  constructor(root, readout, labels, select) {
    this.#root = root;
    this.#readout = readout;
    this.#labels = labels;
    this.#select = select;
    root.addEventListener("click", (event) => this.#clicked(event));
    root.addEventListener("pointerover", (event) => this.#explain(cellOf(event.target)));
    root.addEventListener("pointerleave", () => this.#explain(null));
    root.addEventListener("focusin", (event) => this.#focused(cellOf(event.target)));
    root.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#fitColumns()).observe(root);
    this.#explain(null);
  }

  /** Show a picture; return how many CPUs look different now. */
  update(picture) {
    const { map } = picture;
    this.#names = new Map(map.pods.map((pod) => [pod.uid, nameOf(pod)]));
    this.#shared = new Set(picture.sharedCores);
    const structure = JSON.stringify([picture.parts, map.nodes.map((node) => node.id)]);
    const isNew = structure !== this.#structure;
    if (isNew) {
      this.#structure = structure;
      this.#build(picture);
    }
    this.#fold(picture.folds);
    const changed = map.cpus.filter((cpu) => this.#show(cpu));
    if (!isNew && changed.length <= MOST_FLASHES) changed.forEach((cpu) => this.#flash(cpu.id));
    // A trial was decided before this.
    if (changed.some((cpu) => this.#preview.has(cpu.id))) this.preview([]);
    this.#picture = picture;
    this.#showNodes();
    if (isNew) this.#setSize();
    this.#explain(cellOf(document.activeElement));
    return changed.length;
  }

  /** Mark the CPUs of a pod and fade all others; null ends that. */
  select(uid) {
    this.#selected = uid;
    setAttribute(this.#root, "data-selecting", uid === null ? null : "");
    for (const { cell, cpu } of this.#cells.values()) this.#mark(cell, cpu);
  }

  /** Draw a ring around the CPUs that a pod would get. */
  preview(ids) {
    for (const id of this.#preview.keys()) this.#cells.get(id)?.cell.classList.remove("preview");
    this.#preview = new Map(ids.map((id) => [id, true]));
    for (const id of ids) this.#unfolded(id)?.classList.add("preview");
    this.#cells.get(ids[0])?.cell.scrollIntoView({ block: "nearest" });
  }

  /** Return the sizes to choose from; `resize` is called with the name of one. */
  get sizes() {
    return SIZES;
  }

  get size() {
    return (this.#size ?? SIZES.find((size) => this.#cells.size <= size.most)).name;
  }

  resize(name) {
    this.#size = SIZES.find((size) => size.name === name);
    this.#setSize();
    this.#showNodes();
    for (const { cell, cpu } of this.#cells.values()) {
      setText(cell, this.#isSmall ? "" : this.#sign(cpu));
    }
  }

  // --- building ---------------------------------------------------------------------------------

  #build(picture) {
    this.#cells.clear();
    this.#nodes.clear();
    this.#leaves = [];
    const parts = picture.parts.map((part) => this.#part(part, picture));
    const whole = parts.filter((part) => !part.classList.contains("offline"));
    if (whole.length === 1) whole[0].classList.add("alone");
    const drawn = new Set(this.#nodes.keys());
    const others = picture.map.nodes.filter((node) => !drawn.has(node.id));
    this.#outermost = [...parts, ...others.map((node) => this.#bareNode(node))];
    this.#folds = "";
    this.#root.replaceChildren(...this.#outermost);
    if (!this.#cells.has(this.#current)) this.#current = this.#cells.keys().next().value ?? null;
    this.#cells.get(this.#current)?.cell.setAttribute("tabindex", "0");
  }

  /** Put runs of equal parts behind a line each, which opens them; the elements stay the same. */
  #fold(folds) {
    const signature = JSON.stringify(folds);
    if (signature === (this.#folds || "[]")) return;
    this.#folds = signature;
    const open = new Set([...this.#root.querySelectorAll(":scope > details[open]")].map((each) => each.dataset.start));
    const shown = [...this.#outermost];
    for (const { start, end, text } of folds.toReversed()) {
      const inside = element("div", { class: "inside" }, ...shown.slice(start, end));
      const folded = element("details", { class: "part folded", open: open.has(String(start)) },
        element("summary", {}, text), inside);
      folded.dataset.start = String(start);
      folded.addEventListener("toggle", () => this.#setSize());
      shown.splice(start, end - start, folded);
    }
    this.#root.replaceChildren(...shown);
    this.#setSize();
  }

  /** Return the element of a CPU, whose part is opened if it is folded; undefined without one. */
  #unfolded(id) {
    const cell = this.#cells.get(id)?.cell;
    const folded = cell?.closest("details");
    if (folded) folded.open = true;
    return cell;
  }

  /** Return the element of a part; those with one part inside share a title with it. */
  #part(outermost, picture) {
    const names = [];
    const details = [];
    let part = outermost;
    for (;;) {
      names.push(partName(part, picture.map));
      if (part.kind === "node" && part.first && part.id !== null) details.push(this.#node(part.id));
      if (part.children.length !== 1) break;
      [part] = part.children;
    }
    const inside = part.children.map((child) => this.#part(child, picture));
    const body = inside.length
      ? [element("div", { class: "inside" }, ...inside)]
      : this.#cores(part, names.join(", "));
    const title = element("h3", { class: "part-title" },
      element("span", {}, names.join(" · ")),
      element("span", { class: "cpus" }, `CPUs ${part.cpus.replaceAll(",", ", ")}`));
    const made = element("section", { class: `part ${outermost.kind}`, "aria-label": names.join(", ") },
      title, ...details, ...body);
    made.dataset.cores = String(widest(part));
    return made;
  }

  #node(id) {
    const details = element("div", { class: "node-details" });
    this.#nodes.set(id, { details, signature: "" });
    return details;
  }

  #bareNode(node) {
    const title = element("h3", { class: "part-title" },
      element("span", {}, `Node ${node.id}`), element("span", { class: "cpus" }, "no CPUs"));
    return element("section", { class: "part bare", "aria-label": `node ${node.id}, no CPUs` },
      title, this.#node(node.id));
  }

  /** Return lists of cores, one for each run of cores of a kind. */
  #cores(part, name) {
    const made = [];
    const kinds = new Set(part.kinds);
    let start = 0;
    while (start < part.cores.length) {
      const kind = part.kinds[start];
      let end = start;
      while (end < part.cores.length && part.kinds[end] === kind) end += 1;
      const cores = part.cores.slice(start, end);
      if (kinds.size > 1) {
        const text = `${counted(cores.length, `${kind} core`)}`;
        made.push(element("p", { class: "kind" }, text));
      }
      const list = element("div", { class: "cores", role: "listbox", "aria-label": `CPUs of ${name}`,
        "aria-orientation": "horizontal" });
      list.append(...cores.map((core) => this.#core(core)));
      this.#leaves.push({ list, count: cores.length, columns: 0 });
      made.push(list);
      start = end;
    }
    return made;
  }

  #core(ids) {
    const cells = ids.map((id) => {
      const cell = document.createElement("div");
      cell.setAttribute("role", "option");
      cell.setAttribute("tabindex", "-1");
      cell.dataset.cpu = id;
      this.#cells.set(id, { cell, cpu: null, signature: "", core: ids });
      return cell;
    });
    return element("div", { class: "core", role: "presentation" }, ...cells);
  }

  // --- showing ----------------------------------------------------------------------------------

  /** Show a CPU; return whether it looks different now. */
  #show(cpu) {
    const known = this.#cells.get(cpu.id);
    const mixed = this.#shared.has(cpu.id);
    const owners = cpu.owners.map((owner) =>
      `${owner.uid} ${owner.container ?? ""} ${this.#labels.text(owner.uid)}`);
    const signature = `${cpu.use} ${cpu.isolated} ${cpu.cordoned} ${mixed} ${owners.join("|")}`;
    known.cpu = cpu;
    if (signature === known.signature) return false;
    known.signature = signature;
    this.#mark(known.cell, cpu);
    setText(known.cell, this.#isSmall ? "" : this.#sign(cpu));
    known.cell.setAttribute("aria-label", this.#words(cpu));
    return true;
  }

  /** Whether CPUs are too small for a letter: colour and pattern are all that is drawn. */
  get #isSmall() {
    return this.size === "small";
  }

  #mark(cell, cpu) {
    const owner = NOT_THERE.includes(cpu.use) ? undefined : cpu.owners[0];
    const has = cpu.owners.some((each) => each.uid === this.#selected);
    const classes = ["cpu", `use-${cpu.use}`];
    if (owner !== undefined) {
      classes.push(cpu.owners.length > 1 ? "twice" : this.#labels.classes(owner.uid));
    }
    if (cpu.isolated) classes.push("isolated");
    if (cpu.cordoned) classes.push("cordoned");
    if (this.#shared.has(cpu.id)) classes.push("mixed");
    if (this.#preview.has(cpu.id)) classes.push("preview");
    if (has) classes.push("chosen");
    cell.className = classes.join(" ");
    setAttribute(cell, "aria-selected", has ? "true" : "false");
  }

  #sign(cpu) {
    if (NOT_THERE.includes(cpu.use) || cpu.owners.length === 0) {
      return cpu.isolated && ["free", "shared", "online"].includes(cpu.use) ? "i" : SIGNS[cpu.use];
    }
    if (cpu.owners.length > 1) return "*";
    const [owner] = cpu.owners;
    const label = this.#labels.text(owner.uid);
    return owner.container === null ? label.toLowerCase() : label;
  }

  /** Return what a CPU is and whose, in words. */
  #words(cpu) {
    const owners = cpu.owners.map((owner) => {
      const pod = this.#names.get(owner.uid) ?? owner.uid;
      return owner.container === null
        ? `shared pool of pod ${pod}`
        : `exclusive to container ${owner.container} of pod ${pod}`;
    });
    if (NOT_THERE.includes(cpu.use) || owners.length === 0) owners.unshift(USES[cpu.use]);
    const said = [`CPU ${cpu.id}: ${owners.join(" and ")}`];
    if (cpu.owners.length > 1) said.push("allocated twice");
    if (cpu.cordoned) said.push(owners.length ? "cordoned: nothing new is allocated from it" : "cordoned");
    if (cpu.isolated) said.push("isolated from the scheduler");
    if (this.#shared.has(cpu.id)) said.push("its core has several users");
    const places = ["package", "node"].filter((kind) => cpu[kind] !== null && cpu[kind] !== undefined)
      .map((kind) => `${kind} ${cpu[kind]}`);
    if (cpu.uncore !== null && cpu.uncore !== undefined) places.push(`L3 ${cpu.uncore}`);
    if (cpu.core !== null && cpu.core !== undefined) places.push(`core ${cpu.core}`);
    if (cpu.kind !== "standard") places.push(`${cpu.kind} core`);
    return [...said, places.join(", ")].filter(Boolean).join("; ");
  }

  #flash(id) {
    const { cell } = this.#cells.get(id);
    cell.classList.add("changed");
    cell.addEventListener("animationend", () => cell.classList.remove("changed"), { once: true });
  }

  #showNodes() {
    const near = new Map(this.#picture.map.nodes.map((node) => [node.id, []]));
    this.#picture.map.devices.forEach((device, place) => {
      const known = { ...device, word: this.#picture.deviceWords[place] };
      for (const node of idsOf(device.nodes)) near.get(node)?.push(known);
    });
    const { nodes } = this.#picture.map;
    const classed = new Set(nodes.map((node) => node.memoryClass)).size > 1;
    for (const node of nodes) this.#showNode(node, near.get(node.id), classed);
  }

  #showNode(node, devices, classed) {
    const known = this.#nodes.get(node.id);
    if (known === undefined) return;
    const labels = devices.map((device) => device.owner && this.#labels.text(device.owner.uid));
    const signature = JSON.stringify([node, devices, labels, classed, this.#isSmall]);
    if (signature === known.signature) return;
    known.signature = signature;
    known.details.closest(".part").classList.toggle("cordoned-node", node.cordoned);
    known.details.replaceChildren(...nodeDetails(node, devices, classed, this.#labels, this.#select, this.#isSmall));
  }

  #explain(cell) {
    const known = cell && this.#cells.get(Number(cell.dataset.cpu));
    const shown = known ?? this.#focusedCell();
    const text = shown?.cpu ? this.#words(shown.cpu) : HINT;
    setText(this.#readout, text);
    this.#readout.classList.toggle("hint", text === HINT);
  }

  #focusedCell() {
    const cell = cellOf(document.activeElement);
    return cell && this.#cells.get(Number(cell.dataset.cpu));
  }

  // --- sizes ------------------------------------------------------------------------------------

  #setSize() {
    const size = SIZES.find((each) => each.name === this.size);
    this.#root.dataset.size = size.name;
    for (const part of this.#root.querySelectorAll(".part")) {
      // As wide as its cores in one row, within limits: the page has places for several parts then.
      const width = Number(part.dataset.cores ?? 0) * (size.width + size.gap) + 34;
      part.style.setProperty("--ideal", `${Math.min(Math.max(width, 260), 620)}px`);
    }
    for (const inside of [this.#root, ...this.#root.querySelectorAll(".inside")]) {
      const ideals = [...inside.children].map((part) => parseFloat(part.style.getPropertyValue("--ideal")));
      inside.style.setProperty("--narrowest", `${Math.max(260, ...ideals)}px`);
    }
    this.#leaves.forEach((leaf) => { leaf.columns = 0; });
    this.#fitColumns();
  }

  /** Deal the cores of each list to rows of equal length, as few as there is room for. */
  #fitColumns() {
    const size = SIZES.find((each) => each.name === this.size);
    const widths = this.#leaves.map(({ list }) => list.clientWidth);
    this.#leaves.forEach((leaf, place) => {
      const most = Math.max(1, Math.floor((widths[place] + size.gap) / (size.width + size.gap)));
      const rows = Math.ceil(leaf.count / most);
      const columns = evenColumns(leaf.count, rows, most);
      if (columns === leaf.columns) return;
      leaf.columns = columns;
      leaf.list.style.setProperty("--columns", String(columns));
    });
  }

  // --- pointer and keyboard ---------------------------------------------------------------------

  #clicked(event) {
    const cell = cellOf(event.target);
    if (cell !== null) this.#choose(cell);
  }

  #choose(cell) {
    this.#focus(cell);
    const { cpu } = this.#cells.get(Number(cell.dataset.cpu));
    const uid = cpu.owners[0]?.uid ?? null;
    this.#select(uid === this.#selected ? null : uid);
  }

  #focused(cell) {
    if (cell === null) return;
    this.#cells.get(this.#current)?.cell.setAttribute("tabindex", "-1");
    this.#current = Number(cell.dataset.cpu);
    cell.setAttribute("tabindex", "0");
    this.#explain(cell);
  }

  #focus(cell) {
    cell.focus({ preventScroll: true });
    cell.scrollIntoView({ block: "nearest" });
  }

  #key(event) {
    const cell = cellOf(event.target);
    if (cell === null || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Enter" || event.key === " ") this.#choose(cell);
    else {
      const next = this.#next(event.key, Number(cell.dataset.cpu));
      if (next === undefined) return;
      this.#focus(this.#cells.get(next).cell);
    }
    event.preventDefault();
  }

  /** Return the CPU that a key leads to, undefined for other keys. */
  #next(key, id) {
    const lists = this.#leaves.filter(({ list }) => list.checkVisibility()).map(({ list }) => [...list.children].map((core) => cpusOf(core)));
    const cores = lists.flat();
    const thread = this.#cells.get(id).core.indexOf(id);
    const place = cores.findIndex((core) => core.includes(id));
    const inCore = (at) => cores[at] && cores[at][Math.min(thread, cores[at].length - 1)];
    if (key === "ArrowRight") return inCore(place + 1) ?? id;
    if (key === "ArrowLeft") return inCore(place - 1) ?? id;
    if (key === "Home") return cores[0][0];
    if (key === "End") return cores.at(-1).at(-1);
    if (key === "ArrowDown") return cores[place][thread + 1] ?? this.#nearest(id, 1);
    if (key === "ArrowUp") return cores[place][thread - 1] ?? this.#nearest(id, -1);
    const list = lists.findIndex((each) => each.some((core) => core.includes(id)));
    if (key === "PageDown") return lists[list + 1]?.[0][0] ?? id;
    if (key === "PageUp") return lists[list - 1]?.[0][0] ?? lists[0][0][0];
    return undefined;
  }

  /** Return the CPU in the next row above (-1) or below (1) that is nearest, `id` without one. */
  #nearest(id, direction) {
    const from = this.#cells.get(id).cell.getBoundingClientRect();
    let [best, least] = [id, Infinity];
    for (const [other, { cell }] of this.#cells) {
      const to = cell.getBoundingClientRect();
      const below = (to.top - from.top) * direction;
      if (!to.height || below < from.height / 2) continue;
      const distance = below * 4 + Math.abs(to.left - from.left);
      if (distance < least) [best, least] = [other, distance];
    }
    return best;
  }
}

/** Return the namespace and name of a pod, its uid if it has none. */
export function nameOf(pod) {
  return pod.name ? `${pod.namespace}/${pod.name}` : pod.uid;
}

function cellOf(target) {
  return target instanceof Element ? target.closest("[data-cpu]") : null;
}

function cpusOf(core) {
  return [...core.children].map((cell) => Number(cell.dataset.cpu));
}

function partName(part, map) {
  if (part.kind === "offline") {
    return part.id === null ? "Offline" : `Offline on node ${part.id}`;
  }
  const kind = part.kind === "L3" ? "L3" : part.kind[0].toUpperCase() + part.kind.slice(1);
  if (part.id === null) return `No ${part.kind}`;
  const bytes = part.kind === "L3" ? map.uncoreBytes[String(part.id)] : undefined;
  const size = bytes ? ` (${Math.round(bytes / 2 ** 20)} MiB)` : "";
  return `${kind} ${part.id}${part.first ? "" : " again"}${size}`;
}

/** Return the most cores of any list in a part: those are to stand in a row. */
function widest(part) {
  return Math.max(part.cores.length, ...part.children.map(widest));
}

/** Return a number of columns for so many rows; where it divides, all rows are equally long. */
function evenColumns(count, rows, most) {
  const least = Math.ceil(count / rows);
  for (let columns = most; columns >= Math.max(1, least / 2); columns -= 1) {
    if (count % columns === 0 && columns <= count) return columns;
  }
  return least;
}
