// What a NUMA node has beside CPUs: memory as bars, devices, tier, class and distances.

import { element, sizeText } from "./elements.js";

/**
 * Return the elements of a node's memory, facts and devices. `classed`: nodes have memory of several
 * classes. `brief`: devices of a resource are counted, those of the host left out, for a host of
 * which there are hundreds.
 */
export function nodeDetails(node, devices, classed, labels, select, brief) {
  const memory = node.memory.filter((each) => each.total === null || each.total > 0);
  const pages = memory.filter((each) => each.type !== "memory").reduce((sum, each) => sum + (each.total ?? 0), 0);
  const made = memory.map((each) => memoryBar(each, each.type === "memory" ? pages : 0));
  const chips = brief ? countChips(devices)
    : [...hostChips(devices), ...offeredChips(devices, labels, select)];
  const facts = [];
  if (node.tier !== null && node.tier !== undefined) facts.push(`memory tier ${node.tier}`);
  if (classed && memory.length) facts.push(`memory class ${node.memoryClass || "unknown"}`);
  const others = Object.entries(node.distances).filter(([other]) => Number(other) !== node.id);
  if (!node.cpus && others.length) {
    const nearest = Math.min(...others.map(([, distance]) => distance));
    const nodes = others.filter(([, distance]) => distance === nearest).map(([other]) => other);
    facts.push(`nearest: node ${nodes.slice(0, 4).join(", ")} at distance ${nearest}`);
  }
  if (!memory.length) facts.push("no memory");
  if (node.cordoned) made.unshift(element("p", { class: "cordon" }, "cordoned: nothing new here"));
  if (facts.length) made.push(element("p", { class: "facts" }, facts.join("; ")));
  if (chips.length) {
    made.push(element("ul", { class: "devices", "aria-label": `Devices of node ${node.id}` }, ...chips));
  }
  return made;
}

/** Return the bar of a memory type; what is reserved of memory includes the node's huge pages. */
function memoryBar(memory, hugePages) {
  const name = memory.type === "memory" ? "memory" : `${memory.type.replace("hugepages-", "")} pages`;
  if (memory.total === null) {
    return element("div", { class: "memory" }, element("span", { class: "memory-name" }, name),
      element("span", { class: "amount" }, "size unknown"));
  }
  const known = memory.allocated !== null;
  const allocated = memory.allocated ?? 0;
  const free = Math.max(memory.total - memory.reserved - allocated, 0);
  const said = known
    ? `${sizeText(free)} free of ${sizeText(memory.total)}`
    : sizeText(memory.total);
  const title = known
    ? `${name}: ${sizeText(allocated)} allocated, ${sizeText(free)} free, `
      + `${sizeText(Math.max(memory.reserved - hugePages, 0))} reserved`
      + (hugePages ? `, ${sizeText(Math.min(hugePages, memory.reserved))} in huge pages` : "")
    : `${name}: ${sizeText(memory.total)}, not allocated by node`;
  const bar = element("span", { class: "bar", role: "img", "aria-label": title, title });
  for (const [kind, bytes] of [["allocated", allocated], ["reserved", known ? memory.reserved : 0]]) {
    const piece = element("span", { class: kind });
    piece.style.setProperty("--share", `${(100 * bytes) / memory.total}%`);
    bar.append(piece);
  }
  return element("div", { class: "memory" },
    element("span", { class: "memory-name" }, name), bar, element("span", { class: "amount" }, said));
}

/** Yield the network interfaces, drives and accelerators of the host; others are counted. */
function hostChips(devices) {
  const host = devices.filter((device) => device.kind !== "resource");
  const named = new Set(["network", "display", "accelerator", "NVMe", "InfiniBand", "encryption"]);
  const behind = new Set(host.filter((device) => device.kind === "net").map((device) => device.address));
  const chips = [];
  const counts = new Map();
  for (const device of host) {
    if (device.kind === "net") chips.push(chip(device.name, device.address));
    else if (behind.has(device.address)) continue;
    else if (named.has(device.word)) chips.push(chip(`${device.word} ${device.address}`, ""));
    else counts.set(device.word, (counts.get(device.word) ?? 0) + 1);
  }
  for (const [word, number] of counts) chips.push(chip(`${number} × ${word}`, ""));
  return chips;
}

/** Return the devices that pods may ask for, each with the letter of the pod that has it. */
function offeredChips(devices, labels, select) {
  return devices.filter((device) => device.kind === "resource").map((device) => {
    const state = (device.kubelet ? ", given by the kubelet" : "") + (device.healthy ? "" : ", unhealthy");
    const what = `${device.resource} ${device.name}${state}`;
    const short = device.resource.split("/").at(-1);
    const content = [element("span", { class: "resource" }, short), ` ${device.name}`];
    if (!device.healthy) content.push(element("span", { class: "bad" }, " unhealthy"));
    if (device.owner === null) {
      const free = !device.pod;
      const title = free ? `${what}, free` : `${what}: pod ${device.pod}`;
      return element("li", { class: `device ${free ? "free" : "taken"}`, title }, ...content);
    }
    const { uid, container } = device.owner;
    const swatch = element("span", { class: `swatch ${labels.classes(uid)}` }, labels.text(uid));
    const button = element("button", { type: "button", title: `${what}: container ${container}`,
      onclick: () => select(uid) }, swatch, ...content);
    return element("li", { class: "device taken" }, button);
  });
}

/** Return how many devices of each resource are free. */
function countChips(devices) {
  const offered = Map.groupBy(devices.filter((device) => device.kind === "resource"),
    (device) => device.resource);
  return [...offered].map(([resource, members]) => {
    const free = members.filter((device) => device.owner === null && !device.pod && device.healthy).length;
    const short = resource.split("/").at(-1);
    return chip(`${short} ${free}/${members.length} free`, `${resource}: ${free} of ${members.length} free`);
  });
}

function chip(text, title) {
  return element("li", { class: "device", title: title || null }, text);
}
