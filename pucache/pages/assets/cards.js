"use strict";
/* Text that is safe to show, announcements, cards, the dialog with one large image, keys. The other scripts of the page
   follow in the same scope. The number of a card is the position of its item in `items`. */

const byId = (name) => document.getElementById(name);
const MARKS = { "": "", accepted: "✓ accepted", rejected: "✗ rejected", skipped: "– skipped" };
const zoomDialog = byId("zoom");
const helpDialog = byId("help");
const grid = byId("grid");

/* ---- Text ------------------------------------------------------------------------------------- */

/* Replaces invisible characters, and those that change the direction of the text, by their code points. The
   joiners U+200C and U+200D stay, because emoji and some scripts need them. */
function visible(text) {
  return text
    .replace(/[\u0000-\u001f]/g, (character) => String.fromCharCode(0x2400 + character.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (character) => {
      return `⟨U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
    });
}

/* Screen readers ignore the page behind an open dialog, so the dialog has its own live region. */
function announce(text) {
  byId(zoomDialog.open ? "zoom-announcement" : "announcement").textContent = text;
}

function notify(text) {
  byId("notice").textContent = text;
}

/* ---- Cards ------------------------------------------------------------------------------------- */

const cells = () => [...grid.querySelectorAll(".cell")];
const cellOf = (number) => grid.querySelector(`[data-number="${number}"]`);

function newCard(number, key) {
  const row = byId("card").content.firstElementChild.cloneNode(true);
  row.querySelector(".cell").dataset.number = number;
  row.querySelector(".key").textContent = visible(key);
  row.querySelector(".name").title = visible(key);
  return row;
}

function markCard(cell, decision, label) {
  cell.parentElement.className = `card ${decision}`;
  cell.querySelector(".badge").textContent = MARKS[decision];
  cell.setAttribute("aria-label", label);
  press(cell.querySelectorAll("[data-decision]"), (button) => button.dataset.decision === decision);
}

function picture(image, absent, uri, problem) {
  image.hidden = !uri;
  if (uri) image.src = uri;
  else image.removeAttribute("src");
  absent.textContent = uri ? "" : `No picture: ${problem}`;
}

function press(buttons, isPressed) {
  for (const button of buttons) button.setAttribute("aria-pressed", isPressed(button));
}

/* The tab key reaches only the current card and its buttons. */
function markTurn(number) {
  for (const cell of cells()) {
    const inTurn = Number(cell.dataset.number) === number;
    cell.classList.toggle("turn", inTurn);
    for (const element of [cell, ...cell.querySelectorAll("button")]) element.tabIndex = inTurn ? 0 : -1;
  }
}

function columns() {
  const tops = cells().map((cell) => cell.parentElement.offsetTop);
  return tops.filter((top) => top === tops[0]).length;
}

/* ---- One image, large -------------------------------------------------------------------------- */

/* Shows one pixel of the image as one of the screen; the frame then scrolls. */
function setFullSize(full) {
  byId("zoom-frame").classList.toggle("full", full);
  byId("zoom-frame").tabIndex = full ? 0 : -1;
  byId("zoom-size").setAttribute("aria-pressed", full);
  if (full) byId("zoom-frame").focus();
}

const toggleSize = () => setFullSize(byId("zoom-size").getAttribute("aria-pressed") === "false");

function openZoom() {
  document.activeElement.blur(); // otherwise closing returns the focus to this card, current or not
  zoomDialog.showModal();
  setFullSize(false);
}

/* Shows the small image at once, and replaces it by the original once that is loaded. */
function fillZoom({ title, decision, key, uri, problem, original }) {
  byId("zoom-title").textContent = title;
  byId("zoom-badge").textContent = MARKS[decision];
  byId("zoom-badge").className = `badge ${decision}`;
  byId("zoom-key").textContent = visible(key);
  byId("zoom-problem").textContent = uri ? problem : "";
  byId("zoom-picture").alt = visible(key);
  press(zoomDialog.querySelectorAll("[data-zoom$=ed]"), (button) => button.dataset.zoom === decision);
  const large = byId("zoom-picture");
  if (large.dataset.key === key) return;
  large.dataset.key = key;
  picture(large, byId("zoom-absent"), uri, problem);
  if (original) replaceWhenLoaded(large, key, original);
}

function replaceWhenLoaded(large, key, original) {
  const image = new Image();
  image.onload = () => {
    if (large.dataset.key === key) picture(large, byId("zoom-absent"), original, "");
  };
  image.src = original;
}

/* ---- Keys and clicks --------------------------------------------------------------------------- */

/* DECISION_KEYS work in an enlarged image too. */
const DECISION_KEYS = {
  a: () => decide("accepted"),
  r: () => decide("rejected"),
  s: () => decide("skipped"),
  u: () => undo(),
  "Ctrl+z": () => undo(),
};
const PAGE_KEYS = {
  ...DECISION_KEYS,
  "Shift+a": () => decideRest("accepted"),
  "Shift+r": () => decideRest("rejected"),
  n: () => turn(1),
  p: () => turn(-1),
  z: () => zoom(),
  "?": () => helpDialog.showModal(),
};

const ARROWS = { ArrowRight: () => step(1), ArrowLeft: () => step(-1) };
const GRID_KEYS = {
  ...ARROWS,
  ArrowDown: () => stepRow(1),
  ArrowUp: () => stepRow(-1),
  Home: () => moveTo(pageStart()),
  End: () => moveTo(pageStart() + cells().length - 1),
};
const ZOOM = {
  close: () => zoomDialog.close(),
  previous: () => step(-1),
  next: () => step(1),
  size: toggleSize,
  accepted: () => decide("accepted"),
  rejected: () => decide("rejected"),
  skipped: () => decide("skipped"),
  undo: () => undo(),
};
const ZOOM_KEYS = { ...DECISION_KEYS, ...ARROWS, f: toggleSize, z: ZOOM.close };

/* `keysFor` returns the actions at an element, by key: "a", "Shift+a", "Ctrl+z", "ArrowLeft". */
function listenForKeys(keysFor) {
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.metaKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const shift = event.shiftKey && key !== "?" ? "Shift+" : "";
    const action = keysFor(event.target)[(event.ctrlKey ? "Ctrl+" : "") + shift + key];
    if (!action || (event.target.matches(".full") && key.startsWith("Arrow"))) return; // arrows scroll it
    event.preventDefault();
    if (!event.repeat || key.startsWith("Arrow")) action(); // a key held down must not decide a hundred images
  });
}

function listenToGrid() {
  const listen = (type, act) => {
    grid.addEventListener(type, ({ target }) => {
      const cell = target.closest(".cell");
      if (cell) act(target, Number(cell.dataset.number));
    });
  };
  listen("click", (target, number) => {
    const button = target.closest("[data-decision]");
    if (button) {
      current = number;
      return toggle(items[current], button.dataset.decision);
    }
    moveTo(number);
    if (target.closest(".frame")) zoom();
  });
  listen("focusin", (target, number) => {
    current = number;
    markTurn(number);
  });
}

function listenToButtons() {
  onEach("[data-turn]", "click", (button) => turn(Number(button.dataset.turn)));
  onEach("[data-rest]", "click", (button) => decideRest(button.dataset.rest));
  onEach("[data-zoom]", "click", (button) => ZOOM[button.dataset.zoom]());
  onEach("[data-undo]", "click", undo);
  onEach("#keys", "click", () => helpDialog.showModal());
  zoomDialog.addEventListener("close", () => items[current] && moveTo(current));
}

const onEach = (selector, type, handler) => {
  for (const element of document.querySelectorAll(selector)) element.addEventListener(type, () => handler(element));
};
