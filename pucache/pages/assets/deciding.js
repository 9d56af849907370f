"use strict";
/* Shared by the review page and the page of a live review: decisions, undo, position. The page's own script defines
   `items`, `current`, `isPage` and `PAGE`, what it says and draws, and where decisions are kept: `setMade` changes
   those of one item, `afterChange` follows a group, `afterMove` a move. Follows cards.js. */

/* ---- Decisions and undo ------------------------------------------------------------------------ */

const undoable = []; // groups of [item, `made` before]

/* `made` holds the decisions of an item, each replacing the one before. */
const decisionOf = (item) => item.made.at(-1) ?? "";
const isReady = (item) => item.status === "shown" || item.status === "absent";

function setAll(pairs) {
  for (const [item, made] of pairs) setMade(item, made);
  afterChange(pairs);
}

/* An empty decision takes all decisions of an item back. */
function change(pairs) {
  const changed = pairs.filter(([item, decision]) => decisionOf(item) !== decision);
  if (changed.length) undoable.push(changed.map(([item]) => [item, item.made]));
  setAll(changed.map(([item, decision]) => [item, decision ? [...item.made, decision] : []]));
}

function decide(decision) {
  const item = items[current];
  if (!item) return announce("no image is shown");
  if (!isReady(item)) return announce("the image is still loading");
  change([[item, decision]]);
  goOn();
  announceNext(outcome(decision, item));
}

/* Pressing the button of the current decision takes it back. */
function toggle(item, decision) {
  if (!isReady(item)) return;
  change([[item, decisionOf(item) === decision ? "" : decision]]);
  draw();
  announce(outcome(decisionOf(item) || "undecided", item));
}

/* Images that could not be shown are left: nobody has seen them. */
function decideRest(decision) {
  if (!isPage) return announce("Shift with A or R decides the rest of a page of 12; G shows one");
  const rest = pageItems().filter((item) => !decisionOf(item) && item.status === "shown");
  change(rest.map((item) => [item, decision]));
  goOn();
  announceNext(outcome(`${rest.length} of this page ${decision}`));
}

function undo() {
  const group = undoable.pop();
  if (!group) return announce("nothing to undo");
  setAll(group);
  const [item] = group[0];
  if (items.includes(item)) moveTo(items.indexOf(item));
  announce(outcome(`undone: ${group.length > 1 ? `${group.length} decisions` : spoken(item)}`));
}

function announceNext(text) {
  announce([text, spokenNext()].filter(Boolean).join(". "));
}

/* ---- Position ---------------------------------------------------------------------------------- */

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
  afterMove();
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
  announce(whereText());
}

/* ---- Marks ------------------------------------------------------------------------------------- */

function drawMarks() {
  for (const cell of cells()) {
    const item = items[Number(cell.dataset.number)];
    markCard(cell, decisionOf(item), spoken(item));
  }
  markTurn(current);
}

function drawUndo() {
  for (const button of document.querySelectorAll("[data-undo]")) button.setAttribute("aria-disabled", !undoable.length);
}

function zoom() {
  if (!items[current] || zoomDialog.open) return;
  openZoom();
  drawZoom();
}
