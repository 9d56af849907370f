"use strict";
/* Beside the images: the panel, which the server renders, past decisions, files, and what failed. Follows server.js. */

const pastDialog = byId("past-dialog");
const number = (value) => Math.round(value).toLocaleString("en");
const counts = {}; // the state of the review

/* ---- The panel ----------------------------------------------------------------------------------- */

function onState(state) {
  const advised = counts.advice;
  Object.assign(counts, state);
  if (state.ranking_version !== version) onRanking(state.ranking_version);
  drawPanel();
  drawUndo();
  if (!items[current]) draw();
  if (counts.advice && !advised && advised !== undefined) announce(counts.advice);
}

let drawn = "";

/* What is open or has the focus stays so. */
function drawPanel() {
  if (counts.panel !== drawn) {
    const focused = document.activeElement?.closest("#panel [id]")?.id;
    const open = byId("others")?.open;
    byId("panel").replaceChildren(...parsed((drawn = counts.panel)));
    if (open && byId("others")) byId("others").open = true;
    if (focused) byId(focused)?.focus();
  }
  markOnly("finish", "random");
  markOnly("again", "doubted");
}

/* While only such images are shown, the button leads back. */
function markOnly(name, what) {
  const button = byId(name);
  button.dataset.text ??= button.textContent;
  button.hidden = only !== what && !button.dataset.count;
  button.textContent = only === what ? "Go on with the review" : button.dataset.text;
  button.setAttribute("aria-pressed", only === what);
}

const parsed = (html) => [...new DOMParser().parseFromString(html, "text/html").body.childNodes];

function listenToPanel() {
  byId("panel").addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (button?.dataset.zone) switchAudit(button);
    if (button?.dataset.only) switchOnly(button.dataset.only);
  });
  onEach("#back", "click", () => switchOnly(only));
  onEach("#export", "click", exportFiles);
  onEach("#past", "click", () => showPast(0));
  onEach("#past-more", "click", () => showPast(byId("past-list").lastElementChild.dataset.serial));
  onEach("#past-close", "click", () => pastDialog.close());
  byId("past-list").addEventListener("click", ({ target }) => {
    const entry = target.closest("li");
    if (entry) decideAgain(entry.dataset);
  });
}

/* ---- Failures ------------------------------------------------------------------------------------ */

function onTrouble(error) {
  const line = byId("trouble");
  line.classList.remove("well");
  const todo = { 403: "open the address again that pucache review printed", 409: "reload this page" }[error.status];
  const saved = saving ? "This decision is not saved yet" : "Every decision is saved";
  line.textContent = `${saved}; ${error.message}: ${todo ?? "trying again"}.`;
  if (!items[current]) draw();
}

/* A server that was started again has forgotten what this tab shows. */
function onRecovery() {
  const line = byId("trouble");
  line.classList.add("well");
  line.textContent = "Connected again; every decision is saved.";
  setTimeout(() => line.matches(".well") && (line.textContent = ""), 4000);
  loadAhead();
  refill(true);
}

/* ---- Closing audit, images without a label, files ------------------------------------------------- */

/* An answer is said in one line, and so is a failure. */
async function act(path, body, said) {
  try {
    const line = said(answered(await call(path, body)));
    if (line) notify(line);
  } catch (error) {
    notify(`Not done: ${error.message}`);
  }
}

/* Switches the closing audit, and ends looking again; images not shown yet are exchanged. */
async function switchAudit(button) {
  const on = button.getAttribute("aria-pressed") !== "true";
  only = "";
  toAsk = false;
  await act("/api/closing-audit", { on, zone: button.dataset.zone }, () => "");
  byId("work").scrollIntoView();
  announce(counts.closing_audit ? "closing audit: images drawn at random" : "back to the ranking");
  exchange();
}

/* Shows random images without a label alone, or doubted decisions, or goes back; images not shown yet are exchanged. */
function switchOnly(what) {
  only = only === what ? "" : what;
  toAsk = Boolean(only);
  const shown = { random: "random images without a decision", doubted: "decisions to look at again" };
  byId("work").scrollIntoView(); // on a small screen the buttons are below the images
  announce(shown[only] ?? "the review goes on");
  drawPanel();
  exchange();
}

async function exportFiles() {
  notify(""); // a line that comes again is read again
  await act("/api/export", {}, ({ files, commands }) => {
    byId("commands").textContent = commands.join("\n");
    byId("commands").hidden = !commands.length; // none where nothing can be trained on
    return `Written: ${files.map(visible).join(", ")}`;
  });
}

/* Past decisions, newest first; one that is chosen is shown to be decided again. */
async function showPast(from) {
  try {
    const { html } = await call(`/api/past/${from}?${query}`);
    if (!from) byId("past-list").replaceChildren();
    byId("past-list").append(...parsed(html));
    byId("past-more").hidden = !html;
    if (!pastDialog.open) pastDialog.showModal();
  } catch (error) {
    notify(`Past decisions are not shown: ${error.message}`);
  }
}
