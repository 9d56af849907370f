"use strict";
// The map of the report: an SVG with a dot per image, explored with the pointer or the arrow keys.

const data = JSON.parse(document.getElementById("data").textContent);
const plot = document.getElementById("map-plot");
const card = document.getElementById("map-card");
const WIDTH = 900, HEIGHT = 620, EDGE = 18, REACH = 22; // in units of the SVG

// --- drawing ---------------------------------------------------------------------------------

function svg(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  return element;
}

function element(name, text, className = "") {
  const node = document.createElement(name);
  node.textContent = text;
  node.className = className;
  return node;
}

const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" });
const dots = data.key.map((_, index) => {
  const step = Math.min(9, Math.floor(data.posterior[index] * 10));
  const labelled = data.labelled[index] ? " labelled" : "";
  return svg("circle", { r: labelled ? 7 : 4.5, class: `dot q${step}${labelled}` });
});
const marker = svg("circle", { r: 9, class: "marker", visibility: "hidden" });
// likely positives are drawn late and labelled ones last, so that other dots do not cover them
const order = data.key.map((_, index) => index);
order.sort((a, b) => data.labelled[a] - data.labelled[b] || data.posterior[a] - data.posterior[b]);
drawing.append(...order.map((index) => dots[index]), marker);
plot.append(drawing);

let points = [];
let current = -1;

function layOut(name) {
  points = data[name].map(([x, y]) => [EDGE + x * (WIDTH - 2 * EDGE), EDGE + (1 - y) * (HEIGHT - 2 * EDGE)]);
  dots.forEach((dot, index) => {
    dot.setAttribute("cx", points[index][0].toFixed(1));
    dot.setAttribute("cy", points[index][1].toFixed(1));
  });
  if (current >= 0) mark(current);
}

function mark(index) {
  marker.setAttribute("cx", points[index][0]);
  marker.setAttribute("cy", points[index][1]);
  marker.setAttribute("visibility", "visible");
}

// --- showing one image ----------------------------------------------------------------------

function show(index) {
  if (index === current || index < 0) return;
  current = index;
  mark(index);
  const parts = [];
  if (data.picture[index]) {
    const picture = element("img", "");
    picture.src = data.picture[index];
    picture.alt = "";
    parts.push(picture);
  }
  parts.push(element("p", data.likely[index], "probability"));
  if (data.labelled[index]) parts.push(element("p", "labelled positive"));
  if (data.truth && data.truth[index] !== "not known") parts.push(element("p", `truly ${data.truth[index]}`));
  const key = element("p", "");
  key.append(element("bdi", data.key[index]));
  parts.push(key);
  if (data.problem[index]) parts.push(element("p", data.problem[index], "note"));
  card.replaceChildren(...parts);
}

function nearest(x, y, allowed = () => true, reach = Infinity) {
  let best = -1, least = reach * reach;
  points.forEach(([px, py], index) => {
    const distance = (px - x) ** 2 + (py - y) ** 2;
    if (distance < least && allowed(px - x, py - y, index)) [best, least] = [index, distance];
  });
  return best;
}

function showAtPointer(event) {
  const box = drawing.getBoundingClientRect();
  const scale = WIDTH / box.width;
  const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
  show(nearest(x, y, undefined, REACH * Math.max(1, scale)));
}

plot.addEventListener("pointermove", showAtPointer);
plot.addEventListener("pointerdown", showAtPointer); // touch has no hover

// --- keyboard ------------------------------------------------------------------------------------

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function likeliest() {
  let best = 0;
  data.posterior.forEach((posterior, index) => {
    const better = data.labelled[best] - data.labelled[index] || posterior - data.posterior[best];
    if (better > 0) best = index;
  });
  return best;
}

plot.addEventListener("focus", () => { if (current < 0) show(likeliest()); });

plot.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key === "Home") show(likeliest());
  else if (event.key in DIRECTIONS) {
    const [dx, dy] = DIRECTIONS[event.key];
    const [x, y] = points[current];
    // the nearest dot within 45 degrees of the direction
    show(nearest(x, y, (px, py, index) => index !== current && px * dx + py * dy > Math.abs(px * dy) + Math.abs(py * dx) - 1e-6));
  } else return;
  event.preventDefault();
});

// --- layouts -------------------------------------------------------------------------------------

const layout = document.getElementById("layout");
layout.hidden = !data.tsne;
layout.addEventListener("change", (event) => layOut(event.target.value));
layOut(data.tsne ? "tsne" : "pca");
