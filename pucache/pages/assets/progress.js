"use strict";
/* Progress, advice, files and the state of the link, beside the images. Follows upcoming.js. */

/* ---- Progress ---------------------------------------------------------------------------------- */

const counts = {};
const number = (value) => Math.round(value).toLocaleString("en");

function onState(state) {
  const advised = counts.advice;
  Object.assign(counts, state);
  if (state.ranking_version !== undefined && state.ranking_version !== version) onRanking(state.ranking_version);
  drawProgress();
  drawExamples(state.examples ?? []);
  if (!items[current]) draw();
  if (counts.advice && !advised && advised !== undefined) announce(counts.advice);
}

function onRanking(newest) {
  const first = version === undefined;
  version = newest;
  exhausted = false;
  wantsBetter = !first && !only;
  if (!asking) refill();
}

function drawProgress() {
  const { found, decided, skipped, undecided, rate, rate_of: of, hidden } = counts;
  if (found === undefined) return;
  byId("found").textContent = number(found);
  byId("decided").textContent = number(decided);
  byId("skipped").textContent = number(skipped);
  byId("rate-of").textContent = `Found in last ${number(of || 100)}`;
  byId("rate").textContent = of ? percent(rate) : "–";
  byId("progress").max = Math.max(1, decided + undecided);
  byId("progress").value = decided;
  byId("pile").textContent = `${number(undecided)} images undecided`;
  byId("hidden-high").textContent = hidden ? number(hidden.high) : "after the first random image";
  byId("hidden-high").className = hidden ? "" : "soon";
  byId("hidden-low").textContent = hidden ? number(hidden.low) : "0";
  byId("level").textContent = hidden ? `At most, ${percent(hidden.level)} sure` : "At most";
  drawStatements(counts.statements ?? []);
  byId("advice").textContent = counts.advice ?? "";
  byId("epoch-note").textContent = counts.epoch_note ?? "";
  byId("closing-audit").setAttribute("aria-pressed", Boolean(counts.closing_audit && !counts.closing_zone));
  byId("closing-zone").setAttribute("aria-pressed", Boolean(counts.closing_audit && counts.closing_zone));
  byId("closing-audit-text").textContent = counts.closing_audit
    ? "Only images drawn at random are shown. Press again to go back to the ranking."
    : "Shows images drawn at random, and says how many are hidden among them: few draws say much about the likeliest.";
  drawFinish(counts.random_undecided ?? 0);
  drawAgain(counts.doubted ?? 0);
  const reviewer = counts.reviewer ? `Reviewer: ${visible(counts.reviewer)}.` : "";
  byId("learning").textContent = `${reviewer} ${counts.training ? trainingText() : ""}`;
}

/* Labelled positives, to compare an image with; they stay the same. */
function drawExamples(examples) {
  if (byId("examples").childElementCount) return;
  const entries = examples.map((example) => {
    const [entry, image] = ["li", "img"].map((tag) => document.createElement(tag));
    image.src = address(example, "card");
    image.alt = image.title = visible(example.key);
    entry.append(image);
    return entry;
  });
  byId("examples").append(...entries);
}

/* The strongest that holds without an assumption; the others below it. */
function drawStatements([first, ...others]) {
  byId("sentence").textContent = first ?? "";
  byId("others").hidden = !others.length;
  const lines = others.map((text) => Object.assign(document.createElement("li"), { textContent: text }));
  byId("statements").replaceChildren(...lines);
}

function drawFinish(open) {
  const images = `${number(open)} random image${open === 1 ? "" : "s"}`;
  const finishing = only === "random";
  byId("finish").hidden = !open && !finishing;
  byId("finish").textContent = finishing ? "Go on with the review" : `Finish: decide ${images}`;
  byId("finish").setAttribute("aria-pressed", finishing);
  const text = "In the limit, random images that were skipped or left out count as positive until they are decided.";
  byId("finish-text").textContent = open ? text : "";
}

function drawAgain(doubted) {
  const looking = only === "doubted";
  byId("again").hidden = !doubted && !looking;
  byId("again").textContent = looking ? "Go on with the review" : `Look again at ${number(doubted)} decision${doubted === 1 ? "" : "s"}`;
  byId("again").setAttribute("aria-pressed", looking);
  const text = "The model, trained without them, doubts these. Decide them as if they were new; the last answer counts.";
  byId("again-text").textContent = doubted ? text : "";
}

/* What the trainer works on: before any decision only the labels that the review began with. */
function trainingText() {
  return counts.decided ? "Learning from your decisions …" : "Ranking the images by the labels given at the start …";
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
  holds = true; // a server that was started again has forgotten what this tab shows
  loadAhead();
  await ask();
}

async function exportFiles() {
  notify(""); // a line that comes again is read again
  await act("export", {}, ({ files, commands }) => {
    const text = Array.isArray(commands) ? commands.join("\n") : commands;
    byId("commands").textContent = text ?? "";
    byId("commands").hidden = !text;
    return `Written: ${files.map(visible).join(", ")}`;
  });
}

/* Switches the closing audit; images not shown yet are exchanged. */
async function switchAudit(button) {
  const on = button.getAttribute("aria-pressed") !== "true";
  await act("closing-audit", { on, zone: button.dataset.zone }, () => "");
  announce(counts.closing_audit ? "closing audit: images drawn at random" : "back to the ranking");
  wantsBetter = true;
  exhausted = false;
  refill();
}

/* Shows random images without a label alone, or doubted decisions, or goes back; images not shown yet are exchanged. */
function switchOnly({ dataset }) {
  only = only === dataset.only ? "" : dataset.only;
  toAsk = Boolean(only);
  wantsBetter = true;
  const shown = { random: "random images without a decision", doubted: "decisions to look at again" };
  announce(shown[only] ?? "the review goes on");
  drawProgress();
  showMore();
}

/* An answer is said in one line, and so is a failure. */
async function act(name, body, said) {
  try {
    const answer = await call(`/api/${name}`, body);
    const line = said(answer);
    if (line) notify(line);
    if (answer.state) onState(answer.state);
  } catch (error) {
    notify(`Not done: ${error.message}`);
  }
}
