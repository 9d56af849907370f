"use strict";
/* What is drawn: one image, a page of them, the enlarged one, the end. Follows progress.js. */

const PAUSE = 150; // ms for which an image is looked at before its original is loaded
const FREE_SECONDS = 5; // after which images that other tabs held are asked for
const NONE_FREE = "No image is free";

/* ---- Drawing ----------------------------------------------------------------------------------- */

function spoken(item) {
  const note = item.status === "absent" ? `not shown: ${item.problem}` : item.note;
  const parts = [decisionOf(item) || "undecided", visible(item.key), note];
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

let pause = 0;

function drawOne() {
  const item = items[current];
  byId("stage").dataset.number = current;
  byId("stage").dataset.status = item.status || "loading";
  byId("stage").className = decisionOf(item);
  byId("stage-picture").replaceChildren(...(item.image ? [item.image] : []));
  byId("stage-place").hidden = !(item.part && item.image);
  if (item.part && item.image) byId("stage-place").src = address(item, "place");
  clearTimeout(pause);
  if (item.image) pause = setTimeout(sharpen, PAUSE, item);
  const absent = item.status === "absent";
  byId("stage-absent").textContent = absent ? `This image cannot be shown: ${item.problem}. S skips it.` : "";
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

/* Redraws one item whose image has come. */
function drawItem(item) {
  if (!pageItems().includes(item)) return;
  if (isPage) drawCard(item);
  draw();
}

let free = 0;

function drawEnd(ended) {
  byId("end").hidden = !ended;
  if (!ended) return;
  const [title, text] = exhausted ? lastWords() : ["Fetching images", failures ? "They come when the server answers." : ""];
  clearTimeout(free);
  if (title === NONE_FREE) free = setTimeout(showMore, FREE_SECONDS * 1000);
  byId("skipped-again").hidden = !exhausted || !counts.skipped || Boolean(only);
  byId("back").hidden = !exhausted || !only;
  byId("skipped-again").textContent = `Show the ${number(counts.skipped ?? 0)} skipped again`;
  byId("end-title").textContent = title;
  byId("end-text").textContent = text;
}

function lastWords() {
  if (only === "doubted") {
    return ["You have looked again at every doubted decision", "The limits count your last answers."];
  }
  if (only) {
    const open = counts.random_undecided ?? 0;
    if (!open) return ["Every random image is decided", "The limit counts no undecided image as positive."];
    return [`${number(open)} random image${open === 1 ? " has" : "s have"} no decision`, "The limit counts them as positive."];
  }
  const or = counts.skipped ? " or skipped" : "";
  const left = Math.max(0, (counts.unknown ?? 0) - (counts.skipped ?? 0)); // a skipped image stays unknown
  if (!left) return [`Every image is decided${or}`, "Export the labels, or undo to change a decision."];
  return [NONE_FREE, "The last ones are open in another tab. They come here when it closes."];
}

function showMore() {
  exhausted = false;
  refill();
}

function showSkipped() {
  skippedAgain = true;
  showMore();
}

/* ---- One image, enlarged ----------------------------------------------------------------------- */

function drawZoom() {
  const { key, note, problem, status } = items[current];
  const shown = status === "shown";
  fillZoom({
    title: fileName(items[current]),
    decision: decisionOf(items[current]),
    key,
    facts: [],
    uri: shown ? address(items[current], "card") : "",
    problem: problem || note,
    original: shown && address(items[current], "original"),
  });
}
