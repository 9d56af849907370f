"use strict";
/* The page of a review: the images of this tab, decisions, undo, what is drawn. Runs last of the page's scripts.

   `items` holds decided images, then undecided ones, then those that are loaded ahead and may still be exchanged for
   better ones. The page goes on to the next image once the server has written a decision. */

const CHOICES = { accepted: "positive", rejected: "negative", skipped: "skip", "": "undone" };
const DECISIONS = { positive: "accepted", negative: "rejected", skip: "skipped", undone: "" };
const AHEAD = 12; // images loaded before they are shown
const PAGE = 12; // images of a page
const MOST = 500; // images that are asked for at once
const LOADING = 3; // images loaded at once: a browser has six connections, and decisions need one
const CARD = 600; // pixels of a longer side from which an image is taken for a reduced one
const MAX_ENLARGEMENT = 12; // a tiny image is not blown up further
const PAUSE = 150; // ms for which an image is looked at before its original is loaded
const NONE_FREE = "No image is free";

const items = []; // {row, key, part, problem, note, serial, decision, version, seen, status: "", "loading", "shown" or "absent", image}
const undoable = []; // groups of items, as they were decided
let current = 0;
let isPage = false;
let version; // of the ranking
let exhausted = false; // whether the server had no further image
let only = ""; // what alone is shown: "random" images without a label, or "doubted" decisions,
let toAsk = false; // and whether they are yet to be asked for, all at once
let skippedAgain = false; // whether images that were skipped here may come again

const newItem = (fields) => ({ problem: "", note: "", serial: 0, decision: "", seen: false, status: "", image: null, ...fields });
const isReady = (item) => item.status === "shown" || item.status === "absent";
const unseen = () => items.filter((item) => !item.seen);

/* ---- Decisions ----------------------------------------------------------------------------------- */

let remembered = null; // the last key that was pressed while a decision was saved

/* Decides, or takes back with "", and follows once that is on disk; what is pressed meanwhile follows after it. */
async function change(pairs, follow) {
  if (saving) return (remembered = failures ? null : () => change(pairs, follow));
  const body = pairs.map(([item, decision]) => {
    const { row, serial: replaces, version: shown_version, correction = false } = item;
    return { row, choice: CHOICES[decision], replaces, shown_version: shown_version ?? 0, correction };
  });
  try {
    const answer = save(body);
    draw();
    const { accepted, stale } = await answer;
    for (const [index, [item]] of pairs.entries()) settle(item, [...accepted, ...stale].filter(({ row }) => row === body[index].row));
    stale.forEach(overrule);
    follow();
  } catch (error) {
    overrule({ reason: error.message });
  }
  const next = remembered;
  remembered = null;
  next?.();
}

function settle(item, [{ serial, choice }]) {
  item.decision = DECISIONS[choice];
  item.serial = choice === "undone" ? 0 : serial;
}

/* Another tab or reviewer was first, or the server could not take a decision. */
function overrule({ row, choice, reason }) {
  const what = DECISIONS[choice] || "undecided";
  const key = items.find((item) => item.row === row)?.key ?? "";
  byId("overruled").textContent = reason
    ? `A decision was not taken: ${reason}`
    : `${visible(key)} was decided elsewhere before: ${what}. That decision stands; decide again to change it.`;
  setTimeout(() => (byId("overruled").textContent = ""), 12_000);
  forget({ row });
  draw();
}

/* What was decided elsewhere, or taken back by its button, is not undone again. */
function forget({ row }) {
  undoable.splice(0, undoable.length, ...undoable.filter((group) => !group.some((item) => item.row === row)));
}

const decideAll = (decided, decision, follow) =>
  change(decided.map((item) => [item, decision]), () => {
    undoable.push(decided);
    follow();
    refill();
  });

function decide(decision) {
  const item = items[current];
  if (saving) return (remembered = failures ? null : () => decide(decision));
  if (!item) return announce("no image is shown");
  if (!isReady(item)) return announce("the image is still loading");
  if (item.decision === decision && !item.correction) return goOn(); // a second answer counts
  decideAll([item], decision, () => {
    goOn();
    announceNext(decision);
  });
}

/* Pressing the button of the current decision takes it back. */
function toggle(item, decision) {
  if (!isReady(item)) return;
  const follow = () => (draw(), announce(item.decision || "undecided"));
  if (item.decision === decision) change([[item, ""]], () => (forget(item), follow()));
  else decideAll([item], decision, follow);
}

/* Images that could not be shown are left: nobody has seen them. */
function decideRest(decision) {
  if (!isPage) return announce("Shift with A or R decides the rest of a page of 12; G shows one");
  const rest = pageItems().filter((item) => !item.decision && item.status === "shown");
  decideAll(rest, decision, () => {
    goOn();
    announceNext(`${rest.length} of this page ${decision}`);
  });
}

const hasPast = () => counts.decided + counts.skipped > 0;

/* What was decided before this page was opened is taken back among the past decisions. */
function undo() {
  if (saving) return (remembered = failures ? null : undo);
  const group = undoable.pop();
  if (!group) return hasPast() ? showPast(0) : announce("nothing to undo");
  change(group.map((item) => [item, ""]), () => {
    if (items.includes(group[0])) moveTo(items.indexOf(group[0]));
    announce(`undone: ${group.length > 1 ? `${group.length} decisions` : spoken(group[0])}`);
    refill(true);
  });
}

/* The label is corrected, also where a recheck was answered since: its answer alone changes no label. */
function decideAgain({ row, key, choice, serial }) {
  pastDialog.close();
  const held = items.findIndex((item) => item.row === Number(row));
  if (held >= 0) items.splice(held, 1);
  if (held >= 0 && held < current) current -= 1;
  const again = { row: Number(row), key, decision: DECISIONS[choice], serial: Number(serial), version, correction: true, seen: true };
  items.splice(current, 0, newItem(again));
  if (isPage) drawPage();
  moveTo(current);
}

/* ---- Images to come ------------------------------------------------------------------------------ */

let asking = false;
let wantsBetter = false; // images not shown yet are to be exchanged
let holds = false; // the server is to be told again what this tab shows

function wanted() {
  if (isPage) return pageStart() + 2 * PAGE - items.length;
  const coming = unseen().length;
  return coming > AHEAD - 4 ? 0 : AHEAD - coming; // four at a time
}

function exchange() {
  wantsBetter = true;
  showMore();
}

function showMore() {
  exhausted = false;
  refill();
}

function onRanking(newest) {
  wantsBetter ||= version !== undefined && !only;
  version = newest;
  showMore();
}

/* At the end: images that other tabs held are free by now, or decisions are doubted since. */
function lookForMore() {
  if (!items[current] && exhausted && left()) showMore();
}

async function refill(hold = false) {
  holds ||= hold;
  if (asking || failures) return;
  asking = true;
  try {
    while (wantsBetter || holds || toAsk || (wanted() > 0 && !exhausted)) await ask();
  } catch (error) {
    failed(error);
  } finally {
    asking = false;
  }
}

/* With a new ranking, all images but the next two are asked for anew. The server frees those that are not kept. */
async function ask() {
  const [asked, first] = [only, toAsk];
  const spare = wantsBetter ? unseen().slice(first ? 0 : 2) : [];
  const count = asked ? MOST : Math.max(spare.length, exhausted ? 0 : Math.max(0, wanted()));
  wantsBetter = holds = toAsk = false;
  const kept = items.filter((item) => !item.decision && !spare.includes(item));
  const { images, state } = await call("/api/next", { count, keep: [...new Set(kept.map(({ row }) => row))], only: asked });
  skippedAgain ||= first;
  if (asked === "doubted") leave(images);
  take(images, spare, state.ranking_version, asked === "doubted");
  const isNew = ({ row }) => items.some((item) => item.row === row && !item.decision);
  exhausted ||= (asked && asked === only) || (count > 0 && !images.some(isNew));
  answered({ state });
}

function take(images, spare, ranking, correction) {
  const gone = spare.filter((item) => !item.seen);
  for (const item of gone) items.splice(items.indexOf(item), 1);
  const held = items.filter((item) => !item.decision || (item.decision === "skipped" && !skippedAgain));
  const taken = new Set(held.map(({ row }) => row));
  for (const image of images.filter(({ row }) => !taken.has(row))) {
    const again = gone.find(({ row }) => row === image.row);
    items.push(again ?? newItem({ ...image, version: ranking, correction }));
  }
  skippedAgain = false;
  loadAhead();
  if (isPage && (gone.length || images.length)) drawPage();
  if (!items[current]?.seen || isPage) draw();
}

/* A decision that is looked at again comes without its answer, as a new image does. */
function leave(images) {
  const again = (item) => item.decision && images.some(({ row }) => row === item.row);
  const before = items.slice(0, current).filter(again).length;
  items.splice(0, items.length, ...items.filter((item) => !again(item)));
  current -= before;
}

function showSkipped() {
  skippedAgain = true;
  showMore();
}

/* ---- Loading ------------------------------------------------------------------------------------- */

const address = (item, size) => `/api/image/${item.row}?size=${size}&v=${encodeURIComponent(session)}&session=${encodeURIComponent(session)}`;

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
    item.problem ||= (await call(`/api/card/${item.row}?${query}`)).problem || "the browser cannot decode it";
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
  Object.assign(item, { image: null, sharp: false, status: "" });
}

/* ---- Position ------------------------------------------------------------------------------------ */

function pageStart() {
  const position = Math.max(0, Math.min(current, items.length - 1)); // at the end, the last page
  return position - (position % PAGE);
}

const pageItems = () => (isPage ? items.slice(pageStart(), pageStart() + PAGE) : items.slice(current, current + 1));

function moveTo(position) {
  const page = pageStart();
  current = position;
  if (isPage && pageStart() !== page) drawPage();
  draw();
  if (isPage && !zoomDialog.open) cellOf(current)?.focus();
  loadAhead();
  refill();
}

function goOn() {
  const open = (item) => !item.decision;
  const onPage = isPage ? [...items.slice(current + 1, pageStart() + PAGE), ...pageItems()].find(open) : undefined;
  const next = onPage ?? items.find(open);
  moveTo(next ? items.indexOf(next) : items.length);
}

/* The label of a card that gets the focus is spoken without this. */
function step(by) {
  const position = current + by;
  if (position < 0 || position >= items.length) return;
  moveTo(position);
  if (!isPage || zoomDialog.open) announce(spoken(items[current]));
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
  drawPage();
  draw();
  refill();
  if (document.activeElement === document.body || !page) return;
  if (!document.activeElement.matches("input")) cellOf(current)?.focus();
}

/* ---- Drawing ------------------------------------------------------------------------------------- */

const fileName = ({ key }) => visible(key.split("/").pop());

function spoken(item) {
  const note = item.status === "absent" ? `not shown: ${item.problem}` : item.note;
  return [item.decision || "undecided", visible(item.key), note].filter(Boolean).join(", ");
}

function announceNext(text) {
  const item = items[current];
  if (!item || item.decision) return announce(`${text}. waiting for the next image`);
  announce(`${text}. Next: ${item.status === "absent" ? `not shown: ${item.problem}` : visible(item.key)}`);
}

function draw() {
  const ended = !items[current];
  const waited = !byId("end").hidden;
  byId("one").hidden = isPage || ended;
  byId("many").hidden = !isPage || ended;
  drawEnd(ended);
  for (const item of pageItems()) item.seen = true;
  if (ended) zoomDialog.close();
  else if (isPage) drawMarks();
  else drawOne();
  drawUndo();
  if (zoomDialog.open) drawZoom();
  const unfocused = document.activeElement === document.body; // a card that was hidden has lost the focus
  if (isPage && waited && !ended && unfocused) cellOf(current)?.focus();
}

function drawUndo() {
  const lists = !undoable.length && hasPast();
  for (const button of document.querySelectorAll("[data-undo]")) {
    button.setAttribute("aria-disabled", !undoable.length && !lists);
    button.title = lists ? "Nothing was decided since this page was opened: shows past decisions" : "";
  }
}

let pause = 0;

function drawOne() {
  const item = items[current];
  byId("stage").dataset.number = current;
  byId("stage").dataset.status = saving ? "saving" : item.status || "loading";
  byId("stage").className = item.decision;
  byId("stage-picture").replaceChildren(...(item.image ? [item.image] : []));
  byId("stage-place").hidden = !(item.part && item.image);
  if (item.part && item.image) byId("stage-place").src = address(item, "place");
  clearTimeout(pause);
  if (item.image) pause = setTimeout(sharpen, PAUSE, item);
  const absent = item.status === "absent";
  byId("stage-absent").textContent = absent ? `This image cannot be shown: ${item.problem}. S skips it.` : "";
  byId("stage-key").textContent = visible(item.key);
  byId("stage-note").textContent = item.note;
  byId("stage-badge").textContent = MARKS[item.decision];
  byId("stage-badge").className = `badge ${item.decision}`;
  press(document.querySelectorAll("[data-decide]"), (button) => button.dataset.decide === item.decision);
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
    markCard(cell, item.decision, spoken(item));
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
  const [title, text] = exhausted ? lastWords() : ["Fetching images", failures ? "They come when the server answers." : ""];
  byId("skipped-again").hidden = !exhausted || !counts.skipped || Boolean(only);
  byId("back").hidden = !exhausted || !only;
  byId("skipped-again").textContent = `Show the ${number(counts.skipped ?? 0)} skipped again`;
  byId("end-title").textContent = title;
  byId("end-text").textContent = text;
}

/* Images that may still come to this tab; a skipped one stays unknown. */
function left() {
  if (only) return only === "random" ? counts.random_undecided : counts.doubted;
  return Math.max(0, (counts.untaken ?? 0) + (counts.waiting ?? 0) - (counts.skipped ?? 0));
}

function lastWords() {
  if (only === "doubted" && left()) return ["Fetching images", ""];
  if (only === "doubted") return ["You have looked again at every doubted decision", "The limits count your last answers."];
  if (only) {
    const open = left();
    if (!open) return ["Every random image is decided", "The limit counts no undecided image as positive."];
    return [`${number(open)} random image${open === 1 ? " has" : "s have"} no decision`, "The limit counts them as positive."];
  }
  const or = counts.skipped ? " or skipped" : "";
  if (!left()) return [`Every image is decided${or}`, "Export the labels, or undo to change a decision."];
  return [NONE_FREE, "The last ones are open in another tab. They come here when it closes."];
}

function zoom() {
  if (!items[current] || zoomDialog.open) return;
  openZoom();
  drawZoom();
}

function drawZoom() {
  const { key, note, problem, status, decision } = items[current];
  const shown = status === "shown";
  const [uri, original] = shown ? ["card", "original"].map((size) => address(items[current], size)) : ["", ""];
  fillZoom({ title: fileName(items[current]), decision, key, uri, problem: problem || note, original });
}

/* ---- Keys, mouse and touch ------------------------------------------------------------------------- */

const ON_THE_PAGE = { ...PAGE_KEYS, g: () => setView(!isPage) };

function keysFor(target) {
  const actions = Object.entries(actionsFor(target));
  return Object.fromEntries(byId("letters").checked ? actions : actions.filter(([key]) => !/^(Shift\+)?.$/.test(key)));
}

function actionsFor(target) {
  if (helpDialog.open || pastDialog.open || target.matches("input:not([type=radio])")) return {};
  if (zoomDialog.open) return ZOOM_KEYS;
  if (target.matches("input, pre")) return ON_THE_PAGE; // arrows change the choice, or scroll
  const arrows = { ...ON_THE_PAGE, ...(isPage ? GRID_KEYS : ARROWS) };
  return target.matches("a, button, summary") ? arrows : { ...arrows, Enter: zoom };
}

listenForKeys(keysFor);
listenToGrid();
listenToButtons();
listenToPanel();
byId("stage").addEventListener("click", zoom);
onEach("[data-decide]", "click", (button) => decide(button.dataset.decide));
onEach("[data-step]", "click", (button) => step(Number(button.dataset.step)));
onEach("input[name=view]", "change", (radio) => setView(radio.value === "page"));
onEach("#skipped-again", "click", showSkipped);
onEach("#enlarge", "click", zoom);
listenToServer();
draw();
refill();
