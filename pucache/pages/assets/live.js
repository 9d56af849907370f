"use strict";
/* The page of a live review: where decisions are kept, position, keys. Runs last of the page's scripts, in the same scope. */

const REMEMBERED = 200; // decided images that can be gone back to after a reload
const CHOICES = { accepted: "positive", rejected: "negative", skipped: "skip" };
const DECISIONS = { positive: "accepted", negative: "rejected", skip: "skipped", undone: "" };

/* ---- Decisions, kept by the server --------------------------------------------------------------- */

/* As in the log: a decision replaces the one before, and each is taken back by one "undone". */
function setMade(item, made) {
  const more = made.length - item.made.length;
  if (more > 0) put(item.row, CHOICES[made.at(-1)], item.version, item.correction);
  for (let times = more; times < 0; times += 1) put(item.row, "undone", item.version);
  holds ||= more < 0;
  item.made = more > 0 ? [...item.made, made.at(-1)] : made;
}

function afterChange() {
  remember();
  send();
  refill();
}

const outcome = (what) => what;

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

function goOn() {
  const open = (item) => !decisionOf(item);
  const onPage = isPage ? [...items.slice(current + 1, pageStart() + PAGE), ...pageItems()].find(open) : undefined;
  const next = onPage ?? items.find(open);
  moveTo(next ? items.indexOf(next) : items.length);
}

function afterMove() {
  loadAhead();
  refill();
}

const whereText = () => `page ${pageStart() / PAGE + 1}`;

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
  listenToGrid();
  byId("stage").addEventListener("click", zoom);
  onEach("[data-decide]", "click", (button) => decide(button.dataset.decide));
  onEach("[data-step]", "click", (button) => step(Number(button.dataset.step)));
  onEach("input[name=view]", "change", (radio) => setView(radio.value === "page"));
  onEach("#skipped-again", "click", showSkipped);
  onEach("#enlarge", "click", zoom);
  listenToButtons();
  onEach("#export", "click", exportFiles);
  onEach("#closing-audit, #closing-zone", "click", switchAudit);
  listenToPast();
  onEach("[data-only]", "click", switchOnly);
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
