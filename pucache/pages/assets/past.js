"use strict";
/* Past decisions, newest first; one that is chosen is shown to be decided again. Follows progress.js. */

const pastDialog = byId("past-dialog");
let earliest = 0; // serial number of the last decision in the list

async function showPast(from) {
  try {
    const { decisions } = await call(`/api/past/${from}?session=${encodeURIComponent(session)}`);
    if (!from) byId("past-list").replaceChildren();
    byId("past-list").append(...decisions.map(pastEntry));
    byId("past-more").hidden = !decisions.length;
    earliest = decisions.at(-1)?.serial ?? 0;
    if (!pastDialog.open) pastDialog.showModal();
  } catch (error) {
    notify(`Past decisions are not shown: ${error.message}`);
  }
}

function pastEntry(decision) {
  const [entry, button, image, key, badge] = ["li", "button", "img", "bdi", "span"].map((tag) => document.createElement(tag));
  image.src = address(decision, "card");
  image.alt = "";
  image.loading = "lazy";
  key.textContent = visible(decision.key);
  badge.textContent = DECISIONS[decision.choice];
  badge.className = `badge ${DECISIONS[decision.choice]}`;
  button.type = "button";
  button.append(image, key, badge);
  button.addEventListener("click", () => decideAgain(decision));
  entry.append(button);
  return entry;
}

/* The label is corrected, also where a recheck was answered since: its answer alone changes no label. */
function decideAgain({ row, key, choice, serial }) {
  pastDialog.close();
  const held = items.findIndex((item) => item.row === row);
  if (held >= 0) items.splice(held, 1);
  if (held >= 0 && held < current) current -= 1;
  items.splice(current, 0, newItem({ row, key, made: [DECISIONS[choice]], version, correction: true, seen: true }));
  inForce.set(row, serial);
  if (isPage) drawPage();
  moveTo(current);
}

function listenToPast() {
  onEach("#past", "click", () => showPast(0));
  onEach("#past-more", "click", () => showPast(earliest));
  onEach("#past-close", "click", () => pastDialog.close());
}
