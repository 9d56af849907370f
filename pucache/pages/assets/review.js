"use strict";
/* The review page. `decisions` holds one word per candidate; everything on the screen is drawn from it. The
   number of a candidate is its index in `candidates` (its rank minus one). Its position is its index in `order`,
   the filtered list. */

/* ---- Data and elements of the page -------------------------------------------------------------- */

const { id, base, candidates, labelled, command } = JSON.parse(byId("data").textContent);
const LABELS = { accepted: 1, rejected: 0 };

/* ---- Decisions and undo ------------------------------------------------------------------------ */

const decisions = candidates.map(() => "");
const undoable = []; // groups of [number, decision before]
let unexported = false;

function change(pairs) {
  const changed = pairs.filter(([number, decision]) => decisions[number] !== decision);
  if (changed.length) undoable.push(changed.map(([number]) => [number, decisions[number]]));
  apply(changed);
  return changed.length;
}

function apply(pairs) {
  for (const [number, decision] of pairs) decisions[number] = decision;
  unexported = unexported || pairs.length > 0;
  save();
  drawDecisions(pairs.map(([number]) => number));
}

function decide(decision) {
  if (!order.length) return;
  const number = order[current];
  change([[number, decision]]);
  announce(`${decision}, rank ${number + 1}, ${progressText()}`);
  goToUndecided();
}

/* Pressing the button of the current decision removes that decision. */
function toggle(number, decision) {
  change([[number, decisions[number] === decision ? "" : decision]]);
  announce(`${decisions[number] || "undecided"}, rank ${number + 1}, ${progressText()}`);
}

function decideRest(decision) {
  const rest = pageNumbers().filter((number) => !decisions[number]);
  change(rest.map((number) => [number, decision]));
  announce(`${rest.length} of this page ${decision}, ${progressText()}`);
  goToUndecided();
}

function undo() {
  const group = undoable.pop();
  if (!group) return announce("nothing to undo");
  apply(group);
  const [number, decision] = group[0];
  const what = group.length > 1 ? `${group.length} decisions` : `rank ${number + 1} is ${decision || "undecided"} again`;
  announce(`undone: ${what}, ${progressText()}`);
  const position = order.indexOf(number);
  if (position >= 0) moveTo(position);
}

function counts() {
  const totals = { all: decisions.length, "": 0, accepted: 0, rejected: 0, skipped: 0 };
  for (const decision of decisions) totals[decision] += 1;
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
    localStorage.setItem(STORE, decisions.map((decision) => LETTERS[decision]).join(""));
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
  if (stored === null || stored.length !== decisions.length) return;
  const words = Object.fromEntries(Object.entries(LETTERS).map(([word, letter]) => [letter, word]));
  for (const number of decisions.keys()) decisions[number] = words[stored[number]] ?? "";
}

/* Another tab with the same page has changed a decision. */
function onStorage(event) {
  if (event.key !== STORE) return;
  restore();
  undoable.length = 0;
  drawDecisions(pageNumbers());
}

function onBeforeUnload(event) {
  if (!saved && unexported) event.preventDefault();
}

/* ---- List of candidates, and the current one --------------------------------------------------- */

let order = [];
let current = 0; // position of the current candidate; its page is the one shown
const SIZE = 60; // candidates of a page

const pageStart = () => current - (current % SIZE);
const pageNumbers = () => order.slice(pageStart(), pageStart() + SIZE);
const lastPage = () => Math.max(0, Math.ceil(order.length / SIZE) - 1);

function chosen() {
  const wanted = document.querySelector("input[name=filter]:checked").value;
  const part = byId("search").value.toLowerCase();
  return (number) =>
    (wanted === "all" || decisions[number] === wanted) &&
    (!part || visible(candidates[number].key).toLowerCase().includes(part) ||
      candidates[number].key.toLowerCase().includes(part));
}

/* Called only on request: a list that shrank with each decision would move while the user is deciding. */
function arrange() {
  const before = order[current];
  order = [...candidates.keys()].filter(chosen());
  current = Math.max(0, order.indexOf(before));
  drawPage();
  announce(`${order.length} candidates listed`);
}

function goToUndecided() {
  const open = (position) => !decisions[order[position]];
  const positions = [...order.keys()];
  const next = positions.slice(current + 1).find(open) ?? positions.find(open);
  if (next === undefined) announce(`every candidate of this list is seen, ${progressText()}`);
  moveTo(next ?? current);
}

function moveTo(position) {
  const page = pageStart();
  current = position;
  if (pageStart() !== page) drawPage();
  markTurn(order[current]);
  if (zoomDialog.open) drawZoom();
  else cells()[current - pageStart()]?.focus();
}

function step(by) {
  const position = current + by;
  if (position < 0 || position >= order.length) return;
  moveTo(position);
  if (zoomDialog.open) announce(spoken(order[current]));
}

function stepRow(by) {
  const across = columns();
  const position = current + by * across;
  if (position >= pageStart() && position < Math.min(order.length, pageStart() + SIZE)) moveTo(position);
}

function turn(by) {
  const page = Math.min(lastPage(), Math.max(0, pageStart() / SIZE + by));
  if (page * SIZE === pageStart()) return;
  moveTo(page * SIZE);
  announce(whereText());
}

function whereText() {
  return `page ${pageStart() / SIZE + 1} of ${lastPage() + 1}`;
}

/* ---- Cards ------------------------------------------------------------------------------------- */

function facts(number) {
  const { score, p } = candidates[number];
  return [`score ${score.toFixed(3)}`, ...(p === null ? [] : [`probability ${percent(p)}`])];
}

function spoken(number) {
  const { key, problem } = candidates[number];
  const parts = [`rank ${number + 1}`, decisions[number] || "undecided", ...facts(number), visible(key), problem];
  return parts.filter(Boolean).join(", ");
}

function drawPage() {
  grid.replaceChildren(...pageNumbers().map((number, index) => card(number, pageStart() + index)));
  grid.setAttribute("aria-rowcount", order.length);
  grid.hidden = !order.length;
  byId("nothing").hidden = order.length > 0;
  for (const element of document.querySelectorAll(".where")) element.textContent = whereText();
  for (const button of document.querySelectorAll("[data-turn]")) {
    const end = button.dataset.turn === "1" ? lastPage() * SIZE : 0;
    button.setAttribute("aria-disabled", pageStart() === end); // `disabled` would lose the focus
  }
  drawDecisions(pageNumbers());
}

function card(number, position) {
  const { key, score, p, uri, problem } = candidates[number];
  const row = newCard(number, key);
  const part = (name) => row.querySelector(name);
  row.setAttribute("aria-rowindex", position + 1);
  picture(part("img"), part(".absent"), uri, problem);
  part(".rank").textContent = number + 1;
  part(".score").textContent = score.toFixed(3);
  part(".probability").textContent = p === null ? "" : percent(p);
  return row;
}

/* Redraws the decisions of these candidates where they are on the page, and all counts. */
function drawDecisions(numbers) {
  for (const number of numbers) {
    const cell = cellOf(number);
    if (cell) markCard(cell, decisions[number], spoken(number));
  }
  markTurn(order[current]);
  drawCounts();
  if (zoomDialog.open) drawZoom();
}

function drawCounts() {
  const totals = counts();
  const decided = totals.accepted + totals.rejected;
  const share = decided ? ` · accepted ${totals.accepted} of ${decided}, ${percent(totals.accepted / decided)}` : "";
  byId("tally").textContent = `${progressText()}${totals.skipped ? `, ${totals.skipped} skipped` : ""}${share}`;
  byId("progress").value = decided + totals.skipped;
  for (const element of document.querySelectorAll("[data-count]")) element.textContent = totals[element.dataset.count];
  byId("undo").setAttribute("aria-disabled", !undoable.length);
  const fits = chosen();
  const gone = order.filter((number) => !fits(number)).length;
  byId("outdated").hidden = !gone;
  byId("outdated").firstElementChild.textContent = `${gone} of this list no longer fit${gone === 1 ? "s" : ""} the filter.`;
}

/* ---- One candidate, large ---------------------------------------------------------------------- */

function zoom() {
  if (!order.length || zoomDialog.open) return;
  openZoom();
  drawZoom();
}

function drawZoom() {
  const number = order[current];
  const { key, width, height, uri, problem, file } = candidates[number];
  const pixels = width ? [`${width} × ${height} pixels`] : [];
  fillZoom({
    number,
    title: `Rank ${number + 1}`,
    decision: decisions[number],
    key,
    facts: [...facts(number), ...pixels],
    uri,
    problem,
    original: file && base + file,
  });
}

/* ---- Export and import as CSV (RFC 4180) ------------------------------------------------------- */

function quoted(text) {
  return /[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csv() {
  const decided = [...candidates.keys()].filter((number) => decisions[number] in LABELS);
  const reviewed = decided.map((number) => ({ ...candidates[number], label: LABELS[decisions[number]], reviewed: 1 }));
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

function parseCsv(text) {
  const cell = /(?:"([^"]*(?:""[^"]*)*)"|([^",\r\n]*))(,|\r\n|\n|\r|$)/y;
  const rows = [[]];
  for (let end = ","; end; ) {
    const match = cell.exec(text);
    if (!match) throw new Error(`it is not CSV (line ${rows.length}); choose a file that this page exported`);
    rows.at(-1).push(match[1] === undefined ? match[2] : match[1].replaceAll('""', '"'));
    end = match[3];
    if (end && end !== ",") rows.push([]);
  }
  return rows.filter((row) => row.some(Boolean));
}

/* Returns [key, decision, digest] of each row; throws if the file is not an exported review. */
function readReview(text) {
  const [header = [], ...rows] = parseCsv(text);
  const [key, label, digest] = ["key", "label", "digest"].map((name) => header.indexOf(name));
  if (key < 0 || label < 0) throw new Error("it has no columns key and label; choose a file that this page exported");
  return rows.map((row) => {
    const decision = Object.keys(LABELS).find((name) => String(LABELS[name]) === row[label]);
    if (!decision) throw new Error(`the label of ${visible(row[key] ?? "")} is ${row[label]}; expected 1 or 0`);
    return [row[key], decision, row[digest] ?? ""];
  });
}

/* Digests are of image contents; a different digest means that the review belongs to other images. */
function checkDigests(rows) {
  const digests = new Map([...labelled, ...candidates].map(({ key, digest }) => [key, digest]));
  for (const [key, , digest] of rows) {
    const ours = digests.get(key);
    if (ours && digest && ours !== digest) {
      throw new Error(`it is of another cache (the image ${visible(key)} has other content there); nothing was taken`);
    }
  }
}

function takeReview(rows) {
  checkDigests(rows);
  const numbers = new Map(candidates.map(({ key }, number) => [key, number]));
  const before = new Set(labelled.map(({ key }) => key));
  const onPage = rows.filter(([key]) => numbers.has(key));
  const labelledEarlier = rows.filter(([key]) => before.has(key) && !numbers.has(key)).length;
  change(onPage.map(([key, decision]) => [numbers.get(key), decision]));
  const rest = rows.length - onPage.length - labelledEarlier;
  return `took ${onPage.length} decision${onPage.length === 1 ? "" : "s"}; labelled before: ${labelledEarlier}, not on this page: ${rest}.`;
}

async function importFile(event) {
  const [file] = event.target.files;
  if (!file) return;
  try {
    notify(`${file.name}: ${takeReview(readReview(await textOf(file)))}`);
  } catch (error) {
    const reason = error instanceof TypeError ? "it is not UTF-8 text; choose a file that this page exported" : error.message;
    notify(`${file.name} was refused: ${reason}`);
  }
  event.target.value = ""; // so that the same file can be chosen again
}

/* ---- Keys -------------------------------------------------------------------------------------- */

const IN_THE_GRID = { ...PAGE_KEYS, ...GRID_KEYS };

function keysFor(target) {
  if (helpDialog.open) return {};
  if (target.id === "search") return { Enter: () => moveTo(current) };
  if (target.matches("input:not([type=radio]), select")) return {};
  if (zoomDialog.open) return ZOOM_KEYS;
  if (!order.length) return PAGE_KEYS;
  if (target.matches(".cell, body")) return { ...IN_THE_GRID, Enter: zoom };
  return grid.contains(target) ? IN_THE_GRID : PAGE_KEYS;
}

function start() {
  byId("command").textContent = command;
  listenForKeys(keysFor);
  listenToGrid((number) => order.indexOf(number), (position, decision) => toggle(order[position], decision));
  listenToButtons();
  onEach("input[name=filter]", "change", arrange);
  onEach("#search", "input", arrange);
  onEach("#update", "click", arrange);
  onEach("#undo", "click", undo);
  onEach("#export", "click", exportFile);
  byId("import").addEventListener("change", importFile);
  zoomDialog.addEventListener("close", () => moveTo(current));
  addEventListener("storage", onStorage);
  addEventListener("beforeunload", onBeforeUnload);
  restore();
  arrange();
}

if (candidates.length) start();
