"use strict";
/* The page of a live review: decisions, undo, position, keys. Runs last of the page's scripts, in the same scope. */

const REMEMBERED = 200; // decided images that can be gone back to after a reload
const CHOICES = { accepted: "positive", rejected: "negative", skipped: "skip" };
const DECISIONS = { positive: "accepted", negative: "rejected", skip: "skipped", undone: "" };

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
  put(item.row, CHOICES[decision], item.version, item.correction);
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
  const kept = decided.map(({ row, key, made, version }) => {
    return { row, key, made, version, serial: inForce.get(row) ?? 0 };
  });
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

/* ---- Position ---------------------------------------------------------------------------------- */

function pageStart() {
  const position = Math.max(0, Math.min(current, items.length - 1)); // at the end, the last page
  return position - (position % PAGE);
}

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

/* ---- Keys, mouse and touch --------------------------------------------------------------------- */

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
  return target.matches("a, button") ? arrows : { ...arrows, Enter: zoom };
}

function start() {
  listenForKeys(keysFor);
  listenToGrid((number) => number, (position, decision) => toggle(items[position], decision));
  byId("stage").addEventListener("click", zoom);
  byId("import").addEventListener("change", importFile);
  onEach("[data-decide]", "click", (button) => decide(button.dataset.decide));
  onEach("[data-step]", "click", (button) => step(Number(button.dataset.step)));
  onEach("[data-undo]", "click", undo);
  onEach("input[name=view]", "change", (radio) => setView(radio.value === "page"));
  onEach("#skipped-again", "click", showSkipped);
  onEach("#enlarge", "click", zoom);
  listenToButtons();
  onEach("#export", "click", exportFiles);
  onEach("#closing-audit, #closing-zone", "click", switchAudit);
  listenToPast();
  onEach("[data-finish]", "click", switchFinish);
  zoomDialog.addEventListener("close", () => items[current] && moveTo(current));
  recall();
  link({
    state: onState,
    saved: remember,
    stale: onStale,
    refused: onRefused,
    trouble: onTrouble,
    recover,
  });
  draw();
  refill();
}

start();
