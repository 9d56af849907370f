"use strict";
/* The review page, which keeps decisions in the browser's storage. `items` are the candidates that fit the filter;
   the number of a candidate is its rank minus one. Follows deciding.js. */

/* ---- Data and elements of the page -------------------------------------------------------------- */

const { id, base, candidates, labelled, command } = JSON.parse(byId("data").textContent);
const LABELS = { accepted: 1, rejected: 0 };
const PAGE = 60; // candidates of a page
const isPage = true;

for (const [number, candidate] of candidates.entries()) Object.assign(candidate, { number, made: [], status: "shown" });

/* ---- Decisions, kept by the browser --------------------------------------------------------------- */

let unexported = false;

function setMade(item, made) {
  item.made = made;
}

function afterChange(pairs) {
  unexported ||= pairs.length > 0;
  save();
  draw();
  drawCounts();
}

const outcome = (what, item) => `${what}${item ? `, rank ${item.number + 1}` : ""}, ${progressText()}`;
const spokenNext = () => (items.every(decisionOf) ? "Every candidate of this list is seen" : "");

function counts() {
  const totals = { all: candidates.length, "": 0, accepted: 0, rejected: 0, skipped: 0 };
  for (const item of candidates) totals[decisionOf(item)] += 1;
  return totals;
}

function progressText() {
  const { accepted, rejected } = counts();
  return `${accepted + rejected} of ${candidates.length} decided`;
}

/* ---- Storage in the browser -------------------------------------------------------------------- */

const STORE = `pucache review ${id}`;
const LETTERS = { "": ".", accepted: "a", rejected: "r", skipped: "s" };
let saved = true;

function save() {
  try {
    localStorage.setItem(STORE, candidates.map((item) => LETTERS[decisionOf(item)]).join(""));
    saved = true;
  } catch {
    saved = false; // storage is disabled or full
  }
  byId("not-saved").hidden = saved;
}

function restore() {
  let stored = null;
  try {
    stored = localStorage.getItem(STORE);
  } catch {
    saved = false;
    byId("not-saved").hidden = false;
  }
  if (stored === null || stored.length !== candidates.length) return;
  const words = Object.fromEntries(Object.entries(LETTERS).map(([word, letter]) => [letter, word]));
  for (const item of candidates) item.made = [words[stored[item.number]]].filter(Boolean);
}

/* Another tab with the same page has changed a decision. */
function onStorage(event) {
  if (event.key !== STORE) return;
  restore();
  undoable.length = 0;
  draw();
  drawCounts();
}

function onBeforeUnload(event) {
  if (!saved && unexported) event.preventDefault();
}

/* ---- List of candidates, and the current one --------------------------------------------------- */

let items = [];
let current = 0; // position of the current candidate; its page is the one shown

const lastPage = () => Math.max(0, Math.ceil(items.length / PAGE) - 1);
const whereText = () => `page ${pageStart() / PAGE + 1} of ${lastPage() + 1}`;
const afterMove = () => {}; // nothing is loaded

function chosen() {
  const wanted = document.querySelector("input[name=filter]:checked").value;
  const part = byId("search").value.toLowerCase();
  return (item) =>
    (wanted === "all" || decisionOf(item) === wanted) &&
    (!part || visible(item.key).toLowerCase().includes(part) || item.key.toLowerCase().includes(part));
}

/* Called only on request: a list that shrank with each decision would move while the user is deciding. */
function arrange() {
  const before = items[current];
  items = candidates.filter(chosen());
  current = Math.max(0, items.indexOf(before));
  drawPage();
  announce(`${items.length} candidates listed`);
}

function goOn() {
  const open = (item) => !decisionOf(item);
  const next = items.slice(current + 1).find(open) ?? items.find(open);
  moveTo(next ? items.indexOf(next) : current);
}

/* ---- Cards ------------------------------------------------------------------------------------- */

function facts({ score, p }) {
  return [`score ${score.toFixed(3)}`, ...(p === null ? [] : [`probability ${percent(p)}`])];
}

function spoken(item) {
  const parts = [`rank ${item.number + 1}`, decisionOf(item) || "undecided", ...facts(item), visible(item.key), item.problem];
  return parts.filter(Boolean).join(", ");
}

function drawPage() {
  grid.replaceChildren(...pageItems().map((item, index) => card(item, pageStart() + index)));
  grid.setAttribute("aria-rowcount", items.length);
  grid.hidden = !items.length;
  byId("nothing").hidden = items.length > 0;
  for (const element of document.querySelectorAll(".where")) element.textContent = whereText();
  for (const button of document.querySelectorAll("[data-turn]")) {
    const end = button.dataset.turn === "1" ? lastPage() * PAGE : 0;
    button.setAttribute("aria-disabled", pageStart() === end); // `disabled` would lose the focus
  }
  draw();
  drawCounts();
}

function card({ key, number, score, p, uri, problem }, position) {
  const row = newCard(position, key);
  const part = (name) => row.querySelector(name);
  row.setAttribute("aria-rowindex", position + 1);
  picture(part("img"), part(".absent"), uri, problem);
  part(".rank").textContent = number + 1;
  part(".score").textContent = score.toFixed(3);
  part(".probability").textContent = p === null ? "" : percent(p);
  return row;
}

function draw() {
  drawMarks();
  if (zoomDialog.open) drawZoom();
}

function drawCounts() {
  const totals = counts();
  const decided = totals.accepted + totals.rejected;
  const share = decided ? ` · accepted ${totals.accepted} of ${decided}, ${percent(totals.accepted / decided)}` : "";
  byId("tally").textContent = `${progressText()}${totals.skipped ? `, ${totals.skipped} skipped` : ""}${share}`;
  byId("progress").value = decided + totals.skipped;
  for (const element of document.querySelectorAll("[data-count]")) element.textContent = totals[element.dataset.count];
  drawUndo();
  const fits = chosen();
  const gone = items.filter((item) => !fits(item)).length;
  byId("outdated").hidden = !gone;
  byId("outdated").firstElementChild.textContent = `${gone} of this list no longer fit${gone === 1 ? "s" : ""} the filter.`;
}

/* ---- One candidate, large ---------------------------------------------------------------------- */

function drawZoom() {
  const item = items[current];
  const { key, number, width, height, uri, problem, file } = item;
  fillZoom({
    title: `Rank ${number + 1}`,
    decision: decisionOf(item),
    key,
    facts: [...facts(item), ...(width ? [`${width} × ${height} pixels`] : [])],
    uri,
    problem,
    original: file && base + file,
  });
}

/* ---- Export as CSV (RFC 4180) ------------------------------------------------------------------- */

function quoted(text) {
  return /[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csv() {
  const decided = candidates.filter((item) => decisionOf(item) in LABELS);
  const reviewed = decided.map((item) => ({ ...item, label: LABELS[decisionOf(item)], reviewed: 1 }));
  const lines = [...labelled, ...reviewed].map(({ key, label, reviewed, digest }) => {
    return `${quoted(key)},${label},${reviewed},${digest}\n`;
  });
  return ["key,label,reviewed,digest\n", ...lines].join("");
}

function exportFile() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
  link.download = "reviewed.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // the download still reads it
  unexported = false;
  const { accepted, rejected } = counts();
  notify(`Exported ${accepted} accepted and ${rejected} rejected, after ${labelled.length} labelled before.`);
  byId("next").hidden = false;
}

/* ---- Keys -------------------------------------------------------------------------------------- */

const IN_THE_GRID = { ...PAGE_KEYS, ...GRID_KEYS };

function keysFor(target) {
  if (helpDialog.open) return {};
  if (target.id === "search") return { Enter: () => moveTo(current) };
  if (target.matches("input:not([type=radio]), select")) return {};
  if (zoomDialog.open) return ZOOM_KEYS;
  if (!items.length) return PAGE_KEYS;
  if (target.matches(".cell, body")) return { ...IN_THE_GRID, Enter: zoom };
  return grid.contains(target) ? IN_THE_GRID : PAGE_KEYS;
}

function start() {
  byId("command").textContent = command;
  listenForKeys(keysFor);
  listenToGrid();
  listenToButtons();
  onEach("input[name=filter]", "change", arrange);
  onEach("#search", "input", arrange);
  onEach("#update", "click", arrange);
  onEach("#export", "click", exportFile);
  addEventListener("storage", onStorage);
  addEventListener("beforeunload", onBeforeUnload);
  restore();
  arrange();
}

if (candidates.length) start();
