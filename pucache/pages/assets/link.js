"use strict";
/* The page's link to the server: calls, decisions that are not acknowledged yet, events.

   A decision stays in the browser's storage until the server has acknowledged it. It is sent again under the same
   request identifier, so a decision that arrived twice counts once. */

const session = document.body.dataset.session;
/* Where one server has the sessions of several concepts, whatever is read names its own. */
const query = document.body.dataset.concepts ? `session=${encodeURIComponent(session)}` : "";
const CALL_SECONDS = 10;
const MAX_PAUSE = 4000; // ms between two attempts
const BATCH = 100; // decisions a request

/* ---- Identity of this tab ---------------------------------------------------------------------- */

function identifier() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

const tab = identifier();

/* ---- Calls ------------------------------------------------------------------------------------- */

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
    const keepalive = json.length < 60_000; // browsers refuse larger ones
    const answer = await fetch(path, { ...options, keepalive, signal: limit.signal, cache: "no-store" });
    const content = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new CallError(answer.status, content.error ?? `the server answered ${answer.status}`);
    return content;
  } catch (error) {
    throw error instanceof CallError ? error : new CallError(0, "the server does not answer");
  } finally {
    clearTimeout(timer);
  }
}

/* ---- Storage ----------------------------------------------------------------------------------- */

const STORE = `pucache review ${session} `;
let storable = true;

function store(decision) {
  try {
    localStorage.setItem(STORE + decision.request, JSON.stringify(decision));
  } catch {
    storable = false; // storage is disabled or full: the decision is kept in memory
  }
}

function forget(decision) {
  try {
    localStorage.removeItem(STORE + decision.request);
  } catch {
    storable = false;
  }
}

/* Decisions that a closed tab could not deliver, oldest first. */
function stored() {
  try {
    const names = Object.keys(localStorage).filter((name) => name.startsWith(STORE));
    return names.map((name) => JSON.parse(localStorage.getItem(name))).sort((a, b) => a.time - b.time);
  } catch {
    storable = false;
    return [];
  }
}

/* ---- Decisions on their way -------------------------------------------------------------------- */

const waiting = []; // oldest first
const inForce = new Map(); // row -> serial number of the decision in force; 0: none
const listeners = {}; // state, saved, stale, refused, recover, trouble
let sending = false;
let batch = BATCH;
let lastTime = 0;

/* `replaces` is null while an earlier decision on the row is on its way. */
function put(row, choice, version, correction = false) {
  const pending = waiting.some((decision) => decision.row === row);
  lastTime = Math.max(lastTime + 1, Date.now());
  const replaces = pending ? null : inForce.get(row) ?? 0;
  const decision = { request: identifier(), row, choice, replaces, shown_version: version, time: lastTime, correction };
  waiting.push(decision);
  store(decision);
}

/* The oldest decisions, at most one of a row: the next one of that row replaces it, under a number not known yet. */
function nextBatch() {
  const rows = new Set();
  const end = waiting.findIndex(({ row }) => rows.size === rows.add(row).size);
  return waiting.slice(0, Math.min(batch, end < 0 ? waiting.length : end));
}

async function sendBatch() {
  const decisions = nextBatch();
  const sent = decisions.map(({ request, row, choice, replaces, shown_version, correction }) => {
    return { request, row, choice, replaces: replaces ?? inForce.get(row) ?? 0, shown_version, correction };
  });
  try {
    settle(await call("/api/decide", { decisions: sent }));
    if (waiting.includes(decisions[0])) throw new CallError(0, "the server left a decision unanswered");
    batch = BATCH;
  } catch (error) {
    if (error.status !== 400 && error.status !== 422) throw error;
    refuse(decisions, error);
  }
}

async function deliver() {
  if (sending) return;
  sending = true;
  try {
    while (waiting.length) await sendBatch();
  } finally {
    sending = false;
  }
}

function send() {
  if (!failures) deliver().catch(failed);
}

function settle({ accepted, stale, state }) {
  for (const { request, row, serial, choice } of accepted) {
    inForce.set(row, choice === "undone" ? 0 : serial);
    drop(request);
    const next = waiting.find((decision) => decision.row === row); // the one after it replaces another number
    if (next?.replaces === null) repair(next);
  }
  for (const answer of stale) {
    inForce.set(answer.row, answer.choice === "undone" ? 0 : answer.serial);
    drop(answer.request);
    for (const later of waiting.filter(({ row }) => row === answer.row)) drop(later.request); // made without knowing it
    listeners.stale(answer);
  }
  listeners.saved();
  listeners.state(state);
}

/* A number that is stored outlives this tab. */
function repair(decision) {
  decision.replaces = inForce.get(decision.row);
  store(decision);
}

function drop(request) {
  const index = waiting.findIndex((decision) => decision.request === request);
  if (index >= 0) forget(waiting.splice(index, 1)[0]);
}

/* One decision that the server cannot take must not hold up the others. */
function refuse(decisions, error) {
  if (decisions.length > 1) {
    batch = 1;
    return;
  }
  drop(decisions[0].request);
  batch = BATCH;
  listeners.refused(decisions[0], error.message);
}

/* ---- Failures and new attempts ----------------------------------------------------------------- */

let failures = 0;
let timer = 0;
let attempting = false;

function failed(error) {
  failures += 1;
  clearTimeout(timer);
  timer = setTimeout(attempt, Math.min(MAX_PAUSE, 200 * 2 ** failures));
  listeners.trouble(error);
}

/* The link is whole when everything that waits for it has succeeded. */
async function attempt() {
  if (attempting) return;
  attempting = true;
  const down = failures > 0;
  try {
    const state = await call(`/api/state?${query}`);
    if (state.session !== session) throw new CallError(409, "another review runs at this address now");
    listeners.state(state);
    await deliver();
    await listeners.recover();
    failures = 0;
    clearTimeout(timer);
    if (down) listeners.trouble(null);
    if (down && events.readyState === EventSource.CLOSED) listen();
  } catch (error) {
    failed(error);
  } finally {
    attempting = false;
  }
  send();
}

/* ---- Events ------------------------------------------------------------------------------------ */

let events = null;

function listen() {
  events = new EventSource(`/api/events?${query}&tab=${tab}`);
  events.addEventListener("state", ({ data }) => listeners.state(JSON.parse(data)));
  events.addEventListener("open", () => failures && attempt());
  events.addEventListener("error", () => failures || attempt()); // a lost stream may mean a lost server
}

function link(handlers) {
  Object.assign(listeners, handlers);
  waiting.push(...stored());
  listen();
  send();
  addEventListener("online", () => failures && attempt());
  addEventListener("pagehide", () => call("/api/release", {}).catch(() => {}));
  addEventListener("pageshow", ({ persisted }) => persisted && attempt());
  addEventListener("beforeunload", (event) => {
    if (waiting.length && (failures || !storable)) event.preventDefault();
  });
}
