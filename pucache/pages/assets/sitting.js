"use strict";
/* The page of a sitting. `items` are the images of this tab in the order of showing: decided ones, then undecided
   ones, then those that are loaded ahead and may still be exchanged for better ones. Follows cards.js and link.js. */

const AHEAD = 12; // images loaded before they are shown
const PAGE = 12; // images of a page
const CARD = 600; // pixels of a longer side from which an image is taken for a reduced one
const PAUSE = 150; // ms for which an image is looked at before its original is loaded
const LOADING = 3; // images loaded at once
const REMEMBERED = 200; // decided images that can be gone back to after a reload
const MAX_ENLARGEMENT = 12; // a tiny image is not blown up further
const CHOICES = { accepted: "positive", rejected: "negative", skipped: "skip" };
const DECISIONS = { positive: "accepted", negative: "rejected", skip: "skipped", undone: "" };

const items = []; // {row, key, problem, note, made, version, seen, status: "", "loading", "shown" or "absent", image}
let current = 0;
let isPage = false;
let version; // of the ranking
let used = false; // whether the server had no further image
let skippedAgain = false; // whether images that were skipped here may come again

/* ---- Decisions and undo ------------------------------------------------------------------------ */

const undoable = []; // groups of [item, `made` before]

const decisionOf = (item) => item.made.at(-1) ?? "";

/* `made` holds the decisions of an item, each replacing the one before, as in the log. An empty decision takes all of
   them back. */
function change(pairs) {
  const changed = pairs.filter(([item, decision]) => decisionOf(item) !== decision);
  if (changed.length) undoable.push(changed.map(([item]) => [item, item.made]));
  for (const [item, decision] of changed) {
    if (decision) add(item, decision);
    else takeBack(item, []);
  }
  deliverAndRefill();
}

function add(item, decision) {
  item.made = [...item.made, decision];
  put(item.row, CHOICES[decision], item.version);
}

function takeBack(item, before) {
  for (let times = item.made.length - before.length; times > 0; times -= 1) put(item.row, "undone", item.version);
  item.made = before;
  holds = true;
}

function deliverAndRefill() {
  remember();
  send();
  refill();
}

function decide(decision) {
  const item = items[current];
  if (!item) return announce("no image is shown");
  if (!isReady(item)) return announce("the image is still loading");
  change([[item, decision]]);
  goOn();
  announce(`${decision}. ${spokenNext()}`);
}

/* Pressing the button of the current decision takes it back. */
function toggle(item, decision) {
  if (!isReady(item)) return;
  change([[item, decisionOf(item) === decision ? "" : decision]]);
  draw();
  announce(decisionOf(item) || "undecided");
}

/* Images that could not be shown are left: nobody has seen them. */
function decideRest(decision) {
  if (!isPage) return announce("Shift with A or R decides the rest of a page of 12; G shows one");
  const rest = pageItems().filter((item) => !decisionOf(item) && item.status === "shown");
  change(rest.map((item) => [item, decision]));
  goOn();
  announce(`${rest.length} ${decision}. ${spokenNext()}`);
}

function undo() {
  const group = undoable.pop();
  if (!group) return announce("nothing to undo");
  for (const [item, before] of group) {
    if (before.length < item.made.length) takeBack(item, before);
    else add(item, before.at(-1)); // what was taken back with a button
  }
  deliverAndRefill();
  moveTo(items.indexOf(group[0][0]));
  announce(group.length > 1 ? `undone: ${group.length} decisions` : `undone: ${visible(group[0][0].key)}`);
}

/* Another tab or reviewer was first. */
function onStale({ row, choice }) {
  const concerned = items.filter((item) => item.row === row);
  for (const item of concerned) item.made = [DECISIONS[choice]].filter(Boolean);
  for (const group of undoable.splice(0)) {
    const rest = group.filter(([item]) => item.row !== row);
    if (rest.length) undoable.push(rest);
  }
  const what = DECISIONS[choice] || "undecided";
  byId("overruled").textContent =
    `${concerned.length ? visible(concerned[0].key) : `Row ${row}`} was decided elsewhere before: ${what}. ` +
    "That decision stands; decide again to change it.";
  setTimeout(() => (byId("overruled").textContent = ""), 12_000);
  draw();
}

function onRefused({ row }, reason) {
  for (const item of items) if (item.row === row) item.made = [];
  byId("overruled").textContent = `A decision was not taken: ${reason}`;
  draw();
}

/* ---- What a reload keeps ----------------------------------------------------------------------- */

const HISTORY = `pucache history ${session}`;

function remember() {
  const decided = items.filter((item) => decisionOf(item)).slice(-REMEMBERED);
  const kept = decided.map(({ row, key, made, version }) => ({ row, key, made, version, serial: inForce.get(row) ?? 0 }));
  try {
    sessionStorage.setItem(HISTORY, JSON.stringify(kept));
  } catch {
    // storage is disabled: a reload then forgets what can be undone, and loses no decision
  }
}

function recall() {
  let kept = [];
  try {
    kept = JSON.parse(sessionStorage.getItem(HISTORY)) ?? [];
  } catch {
    return;
  }
  for (const { serial, ...rest } of kept) {
    const item = newItem(rest);
    item.seen = true;
    items.push(item);
    undoable.push([[item, []]]);
    inForce.set(item.row, serial);
  }
  current = items.length;
}

/* ---- Images to come ---------------------------------------------------------------------------- */

let asking = false;
let wantsBetter = false; // images not shown yet are to be exchanged
let holds = false; // an image that was decided is to be held again

const newItem = (fields) => ({ problem: "", note: "", made: [], seen: false, status: "", image: null, ...fields });
const unseen = () => items.filter((item) => !item.seen);

function wanted() {
  if (isPage) return pageStart() + 2 * PAGE - items.length;
  const coming = unseen().length;
  return coming > AHEAD - 4 ? 0 : AHEAD - coming; // four at a time
}

async function refill() {
  if (asking || failures) return;
  try {
    await ask();
  } catch (error) {
    failed(error);
  }
}

/* With a new ranking, all images but the next two are asked for anew. The server frees those that are not kept. */
async function ask() {
  if (asking) return;
  const better = wantsBetter;
  const spare = better ? unseen().slice(2) : [];
  const missing = used ? 0 : Math.max(0, wanted());
  const count = Math.max(spare.length, missing);
  if (!count && !holds) return;
  wantsBetter = holds = false;
  asking = true;
  try {
    const undecided = items.filter((item) => !decisionOf(item) && !spare.includes(item));
    const keep = [...new Set([...undecided, ...waiting].map(({ row }) => row))];
    const { images, state } = await call("/api/next", { count, keep });
    take(images, spare, state.ranking_version);
    used ||= count > 0 && !images.some(({ row }) => items.some((item) => item.row === row && !decisionOf(item)));
    onState(state);
  } finally {
    asking = false;
  }
  if (wantsBetter || holds || (wanted() > 0 && !used)) await ask();
}

function take(images, spare, ranking) {
  const gone = spare.filter((item) => !item.seen);
  for (const item of gone) items.splice(items.indexOf(item), 1);
  const held = items.filter((item) => !decisionOf(item) || (decisionOf(item) === "skipped" && !skippedAgain));
  const taken = new Set([...held, ...waiting].map(({ row }) => row));
  for (const { row, key, problem, note, serial } of images) {
    if (taken.has(row)) continue;
    const again = gone.find((item) => item.row === row);
    items.push(again ?? newItem({ row, key, problem: problem ?? "", note: note ?? "", version: ranking }));
    if (serial || !inForce.has(row)) inForce.set(row, serial ?? 0);
  }
  skippedAgain = false;
  loadAhead();
  if (isPage && (gone.length || images.length)) drawPage();
  if (!items[current]?.seen || isPage) draw();
}

/* ---- Loading ----------------------------------------------------------------------------------- */

const isReady = (item) => item.status === "shown" || item.status === "absent";
const address = (item, size) => `/api/image/${item.row}?size=${size}&v=${encodeURIComponent(session)}`;

function loadAhead() {
  const order = [...items.slice(current), ...items.slice(Math.max(0, current - PAGE), current)];
  const loading = items.filter((item) => item.status === "loading").length;
  const next = order.filter((item) => !item.status).slice(0, Math.max(0, LOADING - loading));
  for (const item of next) load(item);
  for (const item of items.slice(0, Math.max(0, current - 3 * PAGE))) forgetImage(item);
}

async function load(item) {
  item.status = "loading";
  try {
    item.image = item.problem ? null : await fetched(item, "card");
    item.status = item.problem ? "absent" : "shown";
  } catch {
    await explain(item);
  }
  drawItem(item);
  loadAhead();
}

async function fetched(item, size) {
  const image = new Image();
  image.alt = visible(item.key);
  image.src = address(item, size);
  await image.decode();
  image.style.maxWidth = `${MAX_ENLARGEMENT * image.naturalWidth}px`;
  image.style.maxHeight = `${MAX_ENLARGEMENT * image.naturalHeight}px`;
  return image;
}

/* Why an image is not shown: the server says, or does not answer at all. */
async function explain(item) {
  try {
    item.problem ||= (await call(`/api/card/${item.row}`)).problem || "the browser cannot decode it";
    item.status = "absent";
  } catch (error) {
    item.status = "";
    if (!failures) failed(error);
    await new Promise((resume) => setTimeout(resume, 500));
  }
}

/* A small image that the screen shows larger than it is, is replaced by the original while it is looked at. */
async function sharpen(item) {
  const { naturalWidth: width, naturalHeight: height } = item.image;
  const { clientWidth, clientHeight } = byId("stage");
  const enlargement = Math.min(clientWidth / width, clientHeight / height) * devicePixelRatio;
  if (item.sharp || Math.max(width, height) < CARD || enlargement < 1.2) return;
  item.sharp = true;
  const original = await fetched(item, "original").catch(() => null);
  if (!original || !item.image) return;
  item.image = original;
  drawItem(item);
}

function forgetImage(item) {
  if (item.status !== "shown" || pageItems().includes(item)) return;
  item.image = null;
  item.sharp = false;
  item.status = "";
}

/* ---- Position ---------------------------------------------------------------------------------- */

const pageStart = () => Math.min(current, Math.max(0, items.length - 1)) - (Math.min(current, Math.max(0, items.length - 1)) % PAGE);
const pageItems = () => (isPage ? items.slice(pageStart(), pageStart() + PAGE) : items.slice(current, current + 1));

function goOn() {
  const open = (item) => !decisionOf(item);
  const onPage = isPage ? [...items.slice(current + 1, pageStart() + PAGE), ...pageItems()].find(open) : undefined;
  const next = onPage ?? items.find(open);
  moveTo(next ? items.indexOf(next) : items.length);
}

function moveTo(position) {
  const page = pageStart();
  current = position;
  if (isPage && pageStart() !== page) drawPage();
  draw();
  if (isPage && !zoomDialog.open) cellOf(current)?.focus();
  loadAhead();
  refill();
}

function step(by) {
  const position = current + by;
  if (position < 0 || position >= items.length) return;
  moveTo(position);
  announce(spoken(items[current]));
}

function stepRow(by) {
  const position = current + by * columns();
  if (position >= pageStart() && position < pageStart() + pageItems().length) moveTo(position);
}

function turn(by) {
  const start = pageStart() + by * PAGE;
  if (!isPage || start < 0 || start >= items.length) return;
  moveTo(start);
  announce(`page ${start / PAGE + 1}`);
}

function setView(page) {
  isPage = page;
  document.querySelector(`input[name=view][value=${page ? "page" : "one"}]`).checked = true;
  document.body.classList.toggle("pages", page);
  drawPage();
  draw();
  refill();
  if (document.activeElement === document.body || !page) return;
  if (!document.activeElement.matches("input")) cellOf(current)?.focus();
}

/* ---- Drawing ----------------------------------------------------------------------------------- */

function spoken(item) {
  const parts = [decisionOf(item) || "undecided", visible(item.key), item.status === "absent" ? `not shown: ${item.problem}` : item.note];
  return parts.filter(Boolean).join(", ");
}

const fileName = ({ key }) => visible(key.split("/").pop());

function spokenNext() {
  const item = items[current];
  if (!item || decisionOf(item)) return "waiting for the next image";
  return item.status === "absent" ? `Next: not shown: ${item.problem}` : `Next: ${visible(item.key)}`;
}

function draw() {
  const ended = !items[current];
  byId("one").hidden = isPage || ended;
  byId("many").hidden = !isPage || ended;
  drawEnd(ended);
  for (const item of pageItems()) item.seen = true;
  if (ended) closeZoom();
  else if (isPage) drawMarks();
  else drawOne();
  for (const button of document.querySelectorAll("[data-undo]")) button.setAttribute("aria-disabled", !undoable.length);
  if (zoomDialog.open) drawZoom();
}

let pause = 0;

function drawOne() {
  const item = items[current];
  const ready = isReady(item);
  byId("stage").dataset.number = current;
  byId("stage").dataset.status = item.status || "loading";
  byId("stage").className = decisionOf(item);
  byId("stage-picture").replaceChildren(...(item.image ? [item.image] : []));
  clearTimeout(pause);
  if (item.image) pause = setTimeout(sharpen, PAUSE, item);
  byId("stage-absent").textContent = ready && !item.image ? `This image cannot be shown: ${item.problem}. S skips it.` : "";
  byId("stage-key").textContent = visible(item.key);
  byId("stage-note").textContent = item.note;
  byId("stage-badge").textContent = MARKS[decisionOf(item)];
  byId("stage-badge").className = `badge ${decisionOf(item)}`;
  press(document.querySelectorAll("[data-decide]"), (button) => button.dataset.decide === decisionOf(item));
  document.querySelector("[data-step='-1']").setAttribute("aria-disabled", current === 0);
  document.querySelector("[data-step='1']").setAttribute("aria-disabled", current + 1 >= items.length);
}

function drawPage() {
  if (!isPage) return grid.replaceChildren();
  const focused = grid.contains(document.activeElement);
  grid.replaceChildren(...pageItems().map((item, index) => newCard(pageStart() + index, item.key)));
  for (const cell of cells()) cell.querySelector(".key").textContent = fileName(items[Number(cell.dataset.number)]);
  grid.setAttribute("aria-rowcount", pageItems().length);
  for (const item of pageItems()) drawCard(item);
  document.querySelector("[data-turn='-1']").setAttribute("aria-disabled", pageStart() === 0);
  document.querySelector("[data-turn='1']").setAttribute("aria-disabled", pageStart() + PAGE >= items.length);
  if (focused) cellOf(current)?.focus();
}

function drawCard(item) {
  const cell = cellOf(items.indexOf(item));
  if (!cell) return;
  const image = cell.querySelector("img");
  if (item.image && image !== item.image) image.replaceWith(item.image);
  image.hidden = !item.image;
  cell.querySelector(".frame").dataset.status = item.status || "loading";
  cell.querySelector(".absent").textContent = item.status === "absent" ? `Cannot be shown: ${item.problem}` : item.note;
}

function drawMarks() {
  for (const cell of cells()) {
    const item = items[Number(cell.dataset.number)];
    markCard(cell, decisionOf(item), spoken(item));
  }
  markTurn(current);
}

/* Redraws one item whose image has come. */
function drawItem(item) {
  if (!pageItems().includes(item)) return;
  if (isPage) drawCard(item);
  draw();
}

function drawEnd(ended) {
  byId("end").hidden = !ended;
  if (!ended) return;
  const [title, text] = used ? lastWords() : ["Fetching images", failures ? "They come when the server answers again." : ""];
  byId("skipped-again").hidden = !used || !counts.skipped;
  byId("skipped-again").textContent = `Show the ${number(counts.skipped ?? 0)} skipped again`;
  byId("end-title").textContent = title;
  byId("end-text").textContent = text;
}

function lastWords() {
  const left = Math.max(0, (counts.unknown ?? 0) - (counts.skipped ?? 0)); // a skipped image stays unknown
  if (!left) return [`Every image is decided${counts.skipped ? " or skipped" : ""}`, "Export the labels to train the next model, or undo to change a decision."];
  return ["No image is free", `The last ${number(left)} are open in another tab, or wait there for a decision.`];
}

function showSkipped() {
  skippedAgain = true;
  used = false;
  refill();
}

/* ---- Progress ---------------------------------------------------------------------------------- */

const counts = {};
const number = (value) => Math.round(value).toLocaleString("en");

function onState(state) {
  const advised = counts.advice;
  Object.assign(counts, state);
  if (state.ranking_version !== undefined && state.ranking_version !== version) onRanking(state.ranking_version);
  drawProgress();
  if (!items[current]) draw();
  if (counts.advice && !advised && advised !== undefined) announce(counts.advice);
}

function onRanking(newest) {
  const first = version === undefined;
  version = newest;
  used = false;
  wantsBetter = !first;
  if (!asking) refill();
}

function drawProgress() {
  const { found, decided, skipped, unknown, rate, rate_of: of, estimate, hidden } = counts;
  if (found === undefined) return;
  byId("found").textContent = number(found);
  byId("decided").textContent = number(decided);
  byId("skipped").textContent = number(skipped);
  byId("rate-of").textContent = `Found in last ${number(of || 100)}`;
  byId("rate").textContent = of ? percent(rate) : "–";
  byId("progress").max = Math.max(1, decided + unknown);
  byId("progress").value = decided;
  byId("pile").textContent = `${number(unknown)} of the pile undecided`;
  byId("hidden-high").textContent = hidden ? number(hidden.high) : "–";
  byId("level").textContent = hidden ? `At most, ${percent(hidden.level)} sure` : "At most";
  byId("estimate").textContent = estimate == null ? "–" : `about ${number(estimate)}`;
  byId("sentence").textContent = counts.sentence ?? "";
  byId("advice").textContent = counts.advice ?? "";
  byId("epoch-note").textContent = counts.epoch_note ?? "";
  byId("closing-audit").setAttribute("aria-pressed", Boolean(counts.closing_audit));
  byId("learning").textContent = [counts.training ? "Learning from your decisions …" : "", counts.reviewer ? `Reviewer: ${visible(counts.reviewer)}` : ""]
    .filter(Boolean)
    .join(" ");
}

/* ---- Link, files, closing audit ---------------------------------------------------------------- */

function onTrouble(error) {
  const count = waiting.length;
  const unsaved = count ? `Not saved yet: ${count} decision${count === 1 ? "" : "s"}` : "";
  const line = byId("trouble");
  line.classList.toggle("well", !error);
  if (!error) {
    line.textContent = "Connected again; every decision is saved.";
    setTimeout(() => line.matches(".well") && (line.textContent = ""), 4000);
    return;
  }
  const todo = { 403: "open the address again that pucache review printed", 409: "reload this page" }[error.status];
  line.textContent = `${unsaved || "Every decision is saved"}; ${error.message}: ${todo ?? "trying again"}.`;
  if (!items[current]) draw();
}

async function recover() {
  loadAhead();
  await ask();
}

async function exportFiles() {
  await act("export", {}, ({ files, commands }) => {
    const text = Array.isArray(commands) ? commands.join("\n") : commands;
    byId("commands").textContent = text ?? "";
    byId("commands").hidden = !text;
    return `Written: ${files.map(visible).join(", ")}`;
  });
}

async function importFile({ target }) {
  const [file] = target.files;
  if (!file) return;
  try {
    const csv = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    await act("import", { csv }, ({ taken }) => `${visible(file.name)}: took ${number(taken)} decision${taken === 1 ? "" : "s"}.`);
  } catch {
    notify(`${visible(file.name)} was refused: it is not UTF-8 text`);
  }
  target.value = ""; // so that the same file can be chosen again
}

/* Switches the closing audit; images not shown yet are exchanged. */
async function switchAudit() {
  const on = byId("closing-audit").getAttribute("aria-pressed") !== "true";
  await act("closing-audit", { on }, () => (on ? "Closing audit: images drawn at random." : "Back to the ranking."));
  counts.closing_audit = on;
  drawProgress();
  wantsBetter = true;
  used = false;
  refill();
}

async function act(name, body, said) {
  notify("");
  try {
    const answer = await call(`/api/${name}`, body);
    notify(said(answer));
    if (answer.state) onState(answer.state);
  } catch (error) {
    notify(`Not done: ${error.message}`);
  }
}

/* ---- One image, enlarged ----------------------------------------------------------------------- */

function zoom() {
  if (!items[current] || zoomDialog.open) return;
  openZoom();
  drawZoom();
}

function closeZoom() {
  if (zoomDialog.open) zoomDialog.close();
}

function drawZoom() {
  const { key, note, problem, status } = items[current];
  const shown = status === "shown";
  fillZoom({
    number: current,
    title: fileName(items[current]),
    decision: decisionOf(items[current]),
    key,
    facts: [],
    uri: shown ? address(items[current], "card") : "",
    problem: problem || note,
    original: shown && address(items[current], "original"),
  });
}

const ZOOM = {
  close: closeZoom,
  previous: () => step(-1),
  next: () => step(1),
  size: toggleSize,
  accepted: () => decide("accepted"),
  rejected: () => decide("rejected"),
  skipped: () => decide("skipped"),
  undo,
};

/* ---- Keys, mouse and touch --------------------------------------------------------------------- */

const ANYWHERE = {
  a: () => decide("accepted"),
  r: () => decide("rejected"),
  s: () => decide("skipped"),
  u: undo,
  "Ctrl+z": undo,
};
const ON_THE_PAGE = {
  ...ANYWHERE,
  "Shift+a": () => decideRest("accepted"),
  "Shift+r": () => decideRest("rejected"),
  n: () => turn(1),
  p: () => turn(-1),
  g: () => setView(!isPage),
  z: zoom,
  "?": () => helpDialog.showModal(),
};
const WITH_ARROWS = { ...ON_THE_PAGE, ArrowRight: () => step(1), ArrowLeft: () => step(-1) };
const IN_THE_GRID = {
  ...WITH_ARROWS,
  ArrowDown: () => stepRow(1),
  ArrowUp: () => stepRow(-1),
  Home: () => moveTo(pageStart()),
  End: () => moveTo(pageStart() + pageItems().length - 1),
};
const IN_THE_ZOOM = { ...ANYWHERE, f: toggleSize, ArrowRight: () => step(1), ArrowLeft: () => step(-1), z: closeZoom };

function keysFor(target) {
  return lettersOff() ? Object.fromEntries(Object.entries(actionsFor(target)).filter(([key]) => !/^(Shift\+)?.$/.test(key))) : actionsFor(target);
}

function actionsFor(target) {
  if (helpDialog.open || target.matches("input:not([type=radio])")) return {};
  if (zoomDialog.open) return IN_THE_ZOOM;
  if (target.matches("input, pre")) return ON_THE_PAGE; // arrows change the choice, or scroll
  const arrows = isPage ? IN_THE_GRID : WITH_ARROWS;
  return target.matches("a, button") ? arrows : { ...arrows, Enter: zoom };
}

const lettersOff = () => !byId("letters").checked;

function onGridClick({ target }) {
  const cell = target.closest(".cell");
  if (!cell) return;
  const position = Number(cell.dataset.number);
  const button = target.closest("[data-decision]");
  if (button) current = position;
  if (button) return toggle(items[position], button.dataset.decision);
  moveTo(position);
  if (target.closest(".frame")) zoom();
}

function onGridFocus({ target }) {
  const cell = target.closest(".cell");
  if (!cell) return;
  current = Number(cell.dataset.number);
  markTurn(current);
}

function start() {
  listenForKeys(keysFor);
  grid.addEventListener("click", onGridClick);
  grid.addEventListener("focusin", onGridFocus);
  byId("stage").addEventListener("click", zoom);
  byId("import").addEventListener("change", importFile);
  onEach("[data-decide]", "click", (button) => decide(button.dataset.decide));
  onEach("[data-rest]", "click", (button) => decideRest(button.dataset.rest));
  onEach("[data-step]", "click", (button) => step(Number(button.dataset.step)));
  onEach("[data-turn]", "click", (button) => turn(Number(button.dataset.turn)));
  onEach("[data-undo]", "click", undo);
  onEach("[data-zoom]", "click", (button) => ZOOM[button.dataset.zoom]());
  onEach("input[name=view]", "change", (radio) => setView(radio.value === "page"));
  onEach("#skipped-again", "click", showSkipped);
  onEach("#enlarge", "click", zoom);
  onEach("#keys", "click", () => helpDialog.showModal());
  onEach("#export", "click", exportFiles);
  onEach("#closing-audit", "click", switchAudit);
  zoomDialog.addEventListener("close", () => items[current] && moveTo(current));
  recall();
  link({ state: onState, ranking: onRanking, saved: remember, stale: onStale, refused: onRefused, recover, trouble: onTrouble });
  draw();
  refill();
}

start();
