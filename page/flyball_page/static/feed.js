// Fetches the documents: one request after the other, the next round only when the last is over, none while the tab is hidden.

const ROUND_MILLISECONDS = 2000;
const LONGEST_PAUSE_MILLISECONDS = 30000;
const ANSWER_MILLISECONDS = 15000;
const TOKEN_KEY = "flyball-token";

export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

export class Feed {
  /** `wanted()` names the documents of a round; `onDocument(path, document)` and `onRound(problems)` are told. */
  constructor({ wanted, onDocument, onRound, onSignIn }) {
    Object.assign(this, { wanted, onDocument, onRound, onSignIn });
    this.tags = new Map();
    this.clockOffset = 0; // the server's clock less this browser's, in milliseconds
    this.lastAnswer = null; // by this browser's clock
    this.failures = 0;
    this.timer = null;
    this.running = false;
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.soon(); });
  }

  /** Now, in seconds since 1970 by the server's clock. */
  now() {
    return (Date.now() + this.clockOffset) / 1000;
  }

  get token() {
    try { return sessionStorage.getItem(TOKEN_KEY) || ""; } catch (_error) { return this.keptToken || ""; }
  }

  set token(value) {
    this.keptToken = value;
    try {
      if (value) sessionStorage.setItem(TOKEN_KEY, value);
      else sessionStorage.removeItem(TOKEN_KEY);
    } catch (_error) { /* kept in memory alone */ }
    this.tags.clear();
  }

  /** Begin a round now, or right after the one that runs. */
  soon() {
    if (this.running) this.again = true;
    else {
      clearTimeout(this.timer);
      this.round();
    }
  }

  async round() {
    this.running = true;
    this.again = false;
    const problems = new Map();
    let answered = false;
    for (const path of this.wanted()) {
      try {
        const found = await this.get(path);
        answered = true;
        if (found !== null) this.show(path, found);
      } catch (error) {
        problems.set(path, error);
        if (error instanceof Refused) {
          answered = true;
          if (error.status === 401) {
            this.onSignIn(this.token ? error.message : "");
            break;
          }
        } else break; // no answer: the next ones would wait as long
      }
    }
    this.failures = answered ? 0 : this.failures + 1;
    this.running = false;
    const signIn = [...problems.values()].some((error) => error.status === 401);
    if (!document.hidden && !signIn) { // else it goes on when it is looked at, or somebody has signed in
      const pause = Math.min(LONGEST_PAUSE_MILLISECONDS, ROUND_MILLISECONDS * 2 ** Math.min(4, this.failures));
      this.timer = setTimeout(() => this.round(), this.again ? 0 : pause);
    }
    this.onRound(problems);
  }

  /** Hand a document on. One that cannot be shown is fetched anew in the next round, and keeps no other from being shown. */
  show(path, { document, tag }) {
    try {
      this.onDocument(path, document);
      if (this.wanted().includes(path)) this.tags.set(path, tag); // else nobody looked at it
    } catch (error) {
      console.error(`${path} could not be shown:`, error);
    }
  }

  /** One document with its tag; null where it is as it was. */
  async get(path) {
    const headers = {};
    if (this.tags.has(path)) headers["If-None-Match"] = this.tags.get(path);
    // Authorization itself would be taken away by the API server's proxy.
    if (this.token) headers["Flyball-Authorization"] = `Bearer ${this.token}`;
    const answer = await fetch(path, { headers, cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(ANSWER_MILLISECONDS) });
    const date = Date.parse(answer.headers.get("Date") ?? "");
    if (!Number.isNaN(date)) this.clockOffset = date - Date.now();
    this.lastAnswer = Date.now();
    if (answer.status === 304) return null;
    if (!answer.ok) {
      let reason = `${answer.status} ${answer.statusText}`;
      try { reason = (await answer.json()).reason ?? reason; } catch (_error) { /* a proxy's own page */ }
      this.tags.delete(path);
      throw new Refused(answer.status, reason);
    }
    return { document: await answer.json(), tag: answer.headers.get("ETag") ?? "" };
  }
}
