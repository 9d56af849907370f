"use strict";
/* What the page asks of the server: calls, decisions that wait for their acknowledgement, and the state, by polling.
   Follows cards.js. */

const session = document.body.dataset.session;
const CALL_SECONDS = 10;
const POLL_SECONDS = 2;
const SOON = 400; // ms until what follows a decision is asked for
const MAX_PAUSE = 4000; // ms between two attempts

function identifier() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

const tab = identifier();
const query = `session=${encodeURIComponent(session)}&tab=${tab}`;

/* `status` is 0 where no answer came. */
class CallError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function call(path, body) {
  const limit = new AbortController();
  const timer = setTimeout(() => limit.abort(), 1000 * CALL_SECONDS);
  const json = JSON.stringify({ session, tab, ...body });
  const options = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: json };
  try {
    const answer = await fetch(path, { ...options, keepalive: Boolean(body), signal: limit.signal, cache: "no-store" });
    const content = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new CallError(answer.status, content.error ?? `the server answered ${answer.status}`);
    return content;
  } catch (error) {
    throw error instanceof CallError ? error : new CallError(0, "the server does not answer");
  } finally {
    clearTimeout(timer);
  }
}

/* ---- Decisions ----------------------------------------------------------------------------------- */

let saving = false; // whether decisions wait for their acknowledgement
let failures = 0; // calls that failed one after another

/* Sends decisions until the server answers, always under the same identifiers, so that each counts once. What the
   server cannot take is thrown. */
async function save(decisions) {
  const sent = decisions.map((decision) => ({ request: identifier(), ...decision }));
  saving = true;
  try {
    for (;;) {
      try {
        return answered(await call("/api/decide", { decisions: sent }));
      } catch (error) {
        if ([400, 413, 422].includes(error.status)) throw error;
        failed(error);
        await new Promise((resume) => setTimeout(resume, Math.min(MAX_PAUSE, 100 * 2 ** failures)));
      }
    }
  } finally {
    saving = false;
  }
}

/* ---- State and failures -------------------------------------------------------------------------- */

let soon; // timer

function answered(answer) {
  const down = failures > 0;
  failures = 0;
  if (down) onRecovery();
  const state = answer.state ?? answer;
  onState(state);
  if (state.behind) soon ??= setTimeout(() => ((soon = undefined), saving || poll()), SOON);
  return answer;
}

function failed(error) {
  failures += 1;
  onTrouble(error);
}

/* Browsers ask once a minute in a hidden tab, which keeps its images. */
async function poll() {
  try {
    answered(await call(`/api/state?${query}`));
    lookForMore();
  } catch (error) {
    failed(error);
  }
}

function listenToServer() {
  setInterval(() => saving || poll(), 1000 * POLL_SECONDS);
  addEventListener("pagehide", () => call("/api/release", {}).catch(() => {}));
  addEventListener("pageshow", ({ persisted }) => persisted && poll());
  addEventListener("beforeunload", (event) => saving && failures && event.preventDefault());
}
