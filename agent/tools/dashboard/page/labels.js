// The letter, colour and pattern of each pod: it keeps them as long as the page sees it.

// Without those that mean something else on a map, in either case: I, O, R, X.
const LETTERS = "ABCDEFGHJKLMNPQSTUVWYZ";
const HUES = 8;
const PATTERNS = 4;

export class Labels {
  #places = new Map();

  /** Give each pod a place, the lowest that is free, and take back those of pods that are gone. */
  assign(uids) {
    const here = new Set(uids);
    for (const uid of this.#places.keys()) if (!here.has(uid)) this.#places.delete(uid);
    const taken = new Set(this.#places.values());
    let next = 0;
    for (const uid of here) {
      if (this.#places.has(uid)) continue;
      while (taken.has(next)) next += 1;
      taken.add(next);
      this.#places.set(uid, next);
    }
  }

  /** Whether several pods have one colour. */
  get repeated() {
    return this.#places.size > HUES;
  }

  has(uid) {
    return this.#places.has(uid);
  }

  /** Return the letters of a pod, `·` for one without CPUs. */
  text(uid) {
    const place = this.#places.get(uid);
    return place === undefined ? "·" : lettersOf(place);
  }

  /** Return the classes of colour and pattern. */
  classes(uid) {
    const place = this.#places.get(uid);
    if (place === undefined) return "plain";
    return `hue${place % HUES} pattern${Math.floor(place / HUES) % PATTERNS}`;
  }
}

/** A to Z, AA to ZZ and so on. */
function lettersOf(place) {
  let text = "";
  for (let left = place; left >= 0; left = Math.floor(left / LETTERS.length) - 1) {
    text = LETTERS[left % LETTERS.length] + text;
  }
  return text;
}
