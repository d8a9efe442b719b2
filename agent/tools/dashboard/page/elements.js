// Making elements, and the texts of sizes, times and sets of CPUs.

/** Return an element. `given` has attributes, and listeners as functions (`onclick`). */
export function element(name, given = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (typeof value === "function") made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Return the element of an id; the page has it. */
export function byId(id) {
  return document.getElementById(id);
}

/** Set a text where it differs: an unchanged one costs no layout and is not read out again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set an attribute where it differs; null removes it. */
export function setAttribute(node, name, value) {
  if (node.getAttribute(name) === value) return;
  if (value === null) node.removeAttribute(name);
  else node.setAttribute(name, value);
}

/**
 * Make a list have one child for each item, in their order. A child is made again only if what
 * `sign` says of its item has changed, so that focus and scrolling stay.
 */
export function renderList(list, items, keyOf, sign, make) {
  const keys = new Set(items.map(keyOf));
  for (const child of [...list.children]) if (!keys.has(child.dataset.key)) child.remove();
  const known = new Map([...list.children].map((child) => [child.dataset.key, child]));
  let place = list.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    const signature = sign(item);
    let child = known.get(key);
    if (child === undefined || child.signature !== signature) {
      const made = make(item);
      made.dataset.key = key;
      made.signature = signature;
      if (child !== undefined) {
        const inside = child.contains(document.activeElement);
        if (child === place) place = made;
        child.replaceWith(made);
        if (inside) (made.querySelector("button") ?? made).focus();
      }
      child = made;
    }
    if (child === place) place = place.nextElementSibling;
    else list.insertBefore(child, place);
  }
}

const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

/** Return a size in the largest unit that it reaches: `15.6 GiB`. */
export function sizeText(bytes) {
  for (const [unit, size] of UNITS) {
    if (bytes >= size) {
      const amount = bytes / size;
      return `${Number.isInteger(amount) ? amount : amount.toFixed(1)} ${unit}`;
    }
  }
  return `${bytes} B`;
}

/** Return the CPUs of a text in the kernel's list format: `0-2,8` is 0, 1, 2, 8. */
export function idsOf(text) {
  const found = [];
  for (const range of text ? text.split(",") : []) {
    const [first, last = first] = range.split("-").map(Number);
    for (let id = first; id <= last; id += 1) found.push(id);
  }
  return found;
}

/** Return a number with its noun: `1 pod`, `2 pods`. */
export function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/** Return the time of day of a Unix time in seconds, with the date where that is not today. */
export function timeText(seconds) {
  const time = new Date(seconds * 1000);
  const clock = time.toLocaleTimeString("en-GB");
  const today = time.toDateString() === new Date().toDateString();
  return today ? clock : `${time.toLocaleDateString("sv")} ${clock}`;
}

/** Return a time as an element that has all of it for programs. */
export function timeElement(seconds) {
  const iso = new Date(seconds * 1000).toISOString();
  return element("time", { datetime: iso, title: iso }, timeText(seconds));
}
