"use strict";
/* The images of this tab: `items` holds decided ones, then undecided ones, then those that are loaded ahead and may
   still be exchanged for better ones. Follows link.js. */

const AHEAD = 12; // images loaded before they are shown
const PAGE = 12; // images of a page
const MOST = 500; // images that are asked for at once
const LOADING = 3; // images loaded at once: a browser has six connections, and decisions need one
const CARD = 600; // pixels of a longer side from which an image is taken for a reduced one
const MAX_ENLARGEMENT = 12; // a tiny image is not blown up further

const items = []; // {row, key, part, problem, note, made, version, seen, status: "", "loading", "shown" or "absent", image}
let current = 0;
let isPage = false;
let version; // of the ranking
let exhausted = false; // whether the server had no further image
let only = ""; // what alone is shown: "random" images without a label, or "doubted" decisions,
let toAsk = false; // and whether they are yet to be asked for, all at once
let skippedAgain = false; // whether images that were skipped here may come again

/* ---- Images to come ---------------------------------------------------------------------------- */

let asking = false;
let wantsBetter = false; // images not shown yet are to be exchanged
let holds = false; // an image that was decided is to be held again

const newItem = (fields) => ({ problem: "", note: "", made: [], seen: false, status: "", image: null, ...fields });
const unseen = () => items.filter((item) => !item.seen);

function wanted() {
  if (isPage) return pageStart() + 2 * PAGE - items.length;
  const coming = unseen().length;
  return coming > AHEAD - 4 ? 0 : AHEAD - coming; // four at a time
}

async function refill() {
  if (asking || failures) return;
  try {
    await ask();
  } catch (error) {
    failed(error);
  }
}

/* With a new ranking, all images but the next two are asked for anew. The server frees those that are not kept. */
async function ask() {
  if (asking) return;
  const better = wantsBetter;
  const [asked, first] = [only, toAsk];
  const spare = better ? unseen().slice(first ? 0 : 2) : [];
  const missing = first ? MOST : exhausted ? 0 : Math.max(0, wanted());
  const count = Math.max(spare.length, missing);
  if (!count && !holds) return;
  wantsBetter = holds = toAsk = false;
  asking = true;
  try {
    const undecided = items.filter((item) => !decisionOf(item) && !spare.includes(item));
    const keep = [...new Set([...undecided, ...waiting].map(({ row }) => row))];
    const { images, state } = await call("/api/next", { count, keep, only: asked });
    skippedAgain ||= first;
    if (asked === "doubted") leave(images);
    take(images, spare, state.ranking_version, asked === "doubted");
    exhausted ||= (asked && asked === only) || count > 0 && !images.some(({ row }) => items.some((item) => item.row === row && !decisionOf(item)));
    onState(state);
  } finally {
    asking = false;
  }
  if (wantsBetter || holds || (wanted() > 0 && !exhausted)) await ask();
}

function take(images, spare, ranking, correction) {
  const gone = spare.filter((item) => !item.seen);
  for (const item of gone) items.splice(items.indexOf(item), 1);
  const held = items.filter((item) => !decisionOf(item) || (decisionOf(item) === "skipped" && !skippedAgain));
  const taken = new Set([...held, ...waiting].map(({ row }) => row));
  for (const { row, key, part, problem, note, serial } of images) {
    if (taken.has(row)) continue;
    const again = gone.find((item) => item.row === row);
    items.push(again ?? newItem({ row, key, part, problem: problem ?? "", note: note ?? "", version: ranking, correction }));
    if (serial || !inForce.has(row)) inForce.set(row, serial ?? 0);
  }
  skippedAgain = false;
  loadAhead();
  if (isPage && (gone.length || images.length)) drawPage();
  if (!items[current]?.seen || isPage) draw();
}

/* A decision that is looked at again comes without its answer, as a new image does. */
function leave(images) {
  const again = (item) => decisionOf(item) && images.some(({ row }) => row === item.row);
  const before = items.slice(0, current).filter(again).length;
  items.splice(0, items.length, ...items.filter((item) => !again(item)));
  current -= before;
}

/* ---- Loading ----------------------------------------------------------------------------------- */

const address = (item, size) => `/api/image/${item.row}?size=${size}&v=${encodeURIComponent(session)}&${query}`;

function loadAhead() {
  const order = [...items.slice(current), ...items.slice(Math.max(0, current - PAGE), current)];
  const loading = items.filter((item) => item.status === "loading").length;
  const next = order.filter((item) => !item.status).slice(0, Math.max(0, LOADING - loading));
  for (const item of next) load(item);
  for (const item of items.slice(0, Math.max(0, current - 3 * PAGE))) forgetImage(item);
}

async function load(item) {
  item.status = "loading";
  try {
    item.image = item.problem ? null : await fetched(item, "card");
    item.status = item.problem ? "absent" : "shown";
  } catch {
    await explain(item);
  }
  drawItem(item);
  loadAhead();
}

async function fetched(item, size) {
  const image = new Image();
  image.alt = visible(item.key);
  image.src = address(item, size);
  await image.decode();
  image.style.maxWidth = `${MAX_ENLARGEMENT * image.naturalWidth}px`;
  image.style.maxHeight = `${MAX_ENLARGEMENT * image.naturalHeight}px`;
  return image;
}

/* Why an image is not shown: the server says, or does not answer at all. */
async function explain(item) {
  try {
    item.problem ||= (await call(`/api/card/${item.row}?${query}`)).problem || "the browser cannot decode it";
    item.status = "absent";
  } catch (error) {
    item.status = "";
    if (!failures) failed(error);
    await new Promise((resume) => setTimeout(resume, 500));
  }
}

/* A small image that the screen shows larger than it is, is replaced by the original while it is looked at. */
async function sharpen(item) {
  const { naturalWidth: width, naturalHeight: height } = item.image;
  const { clientWidth, clientHeight } = byId("stage");
  const enlargement = Math.min(clientWidth / width, clientHeight / height) * devicePixelRatio;
  if (item.sharp || Math.max(width, height) < CARD || enlargement < 1.2) return;
  item.sharp = true;
  const original = await fetched(item, "original").catch(() => null);
  if (!original || !item.image) return;
  item.image = original;
  drawItem(item);
}

function forgetImage(item) {
  if (item.status !== "shown" || pageItems().includes(item)) return;
  item.image = null;
  item.sharp = false;
  item.status = "";
}
