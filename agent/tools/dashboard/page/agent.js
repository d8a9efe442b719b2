// What the page asks: every request has the token of the address, every answer has a deadline.

const KEPT = "numawarden-token";
const ANSWER_MS = 65_000;

/** The server or the agent answered with an error, or not at all; `status` is 0 then. */
export class AnswerError extends Error {
  constructor(status, message, details = []) {
    super(message);
    this.status = status;
    this.details = details;
  }
}

/**
 * Return the token behind the `#` of the address, which it is taken out of: who looks at the screen,
 * or gets the address, does not get the token. It stays for this tab, so that it can be reloaded.
 */
export function takeToken() {
  const given = location.hash.slice(1);
  if (/^[\w-]{20,}$/.test(given)) {
    sessionStorage.setItem(KEPT, given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEPT) ?? "";
}

/** Return the answers that `numawarden dashboard --save` wrote into the page, null in one that is served. */
export function savedAnswers() {
  const saved = document.getElementById("saved");
  return saved === null ? null : JSON.parse(saved.textContent);
}

export class Agent {
  #headers;

  constructor(token) {
    this.#headers = { Authorization: `Bearer ${token}` };
  }

  /** Return the map with its parts. */
  picture() {
    return this.#document("/picture");
  }

  /** Return all pods in the order of admission. */
  async pods() {
    return (await this.#document("/v1/pods")).pods;
  }

  /** Return what makes a pod slow, which is read of one pod at a time; null once it is gone. */
  async slowness(uid) {
    return (await this.#document(`/v1/pods/${uid}`))?.slow ?? null;
  }

  status() {
    return this.#document("/v1/status");
  }

  /** Return the events of the past, null where the agent keeps none. */
  history() {
    return this.#document("/v1/history");
  }

  /** Return the admission or rejection that a manifest would get; an invalid one is an error. */
  async tryPod(manifest) {
    const answer = await this.#ask("/v1/pods?dryRun=true&advice=true", { method: "POST", body: manifest });
    const document = await documentOf(answer);
    if (answer.ok || document?.rejection) return document;
    throw failure(answer, document);
  }

  /** Call `heard` with each event until the stream ends; `opened` when it begins. */
  async watch(opened, heard) {
    const answer = await this.#ask("/v1/watch", {}, false);
    if (!answer.ok) throw failure(answer, await documentOf(answer));
    opened();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) heard(JSON.parse(line));
    }
  }

  async #document(path) {
    const answer = await this.#ask(path);
    if (answer.status === 204) return null;
    const document = await documentOf(answer);
    if (!answer.ok) throw failure(answer, document);
    return document;
  }

  async #ask(path, options = {}, hasEnd = true) {
    const signal = hasEnd ? AbortSignal.timeout(ANSWER_MS) : undefined;
    try {
      return await fetch(path, { ...options, headers: this.#headers, signal, redirect: "error" });
    } catch {
      throw new AnswerError(0, "`numawarden dashboard` has ended; start it again");
    }
  }
}

async function documentOf(answer) {
  const text = await answer.text();
  const start = performance.now();
  try {
    return JSON.parse(text);
  } catch {
    return null;
  } finally {
    performance.measure("parse", { start, end: performance.now() });
  }
}

function failure(answer, document) {
  const error = document?.error;
  const message = error?.message ?? `the answer has status ${answer.status} and no explanation`;
  return new AnswerError(answer.status, message, error?.details ?? []);
}
