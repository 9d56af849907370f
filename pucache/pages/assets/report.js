"use strict";
// The map of the report: dots of an SVG, looked at with the pointer or the arrow keys.

const data = JSON.parse(document.getElementById("data").textContent);
const plot = document.getElementById("map-plot");
const card = document.getElementById("map-card");
const WIDTH = 900, HEIGHT = 620, EDGE = 18, REACH = 22; // in units of the drawing

// --- drawing ---------------------------------------------------------------------------------

function svg(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  return element;
}

function element(name, text, className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className;
  return made;
}

const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" });
const dots = data.key.map((_, at) => {
  const step = Math.min(9, Math.floor(data.posterior[at] * 10));
  const labelled = data.labelled[at] ? " labelled" : "";
  return svg("circle", { r: labelled ? 7 : 4.5, class: `dot q${step}${labelled}` });
});
const here = svg("circle", { r: 9, class: "here", visibility: "hidden" });
// likely images are drawn last, and labelled ones after them, so that none of these is covered
const order = data.key.map((_, at) => at);
order.sort((a, b) => data.labelled[a] - data.labelled[b] || data.posterior[a] - data.posterior[b]);
drawing.append(...order.map((at) => dots[at]), here);
plot.append(drawing);

let places = [];
let current = -1;

function layOut(name) {
  places = data[name].map(([x, y]) => [EDGE + x * (WIDTH - 2 * EDGE), EDGE + (1 - y) * (HEIGHT - 2 * EDGE)]);
  dots.forEach((dot, at) => {
    dot.setAttribute("cx", places[at][0].toFixed(1));
    dot.setAttribute("cy", places[at][1].toFixed(1));
  });
  if (current >= 0) mark(current);
}

function mark(at) {
  here.setAttribute("cx", places[at][0]);
  here.setAttribute("cy", places[at][1]);
  here.setAttribute("visibility", "visible");
}

// --- looking at one image ----------------------------------------------------------------------

function show(at) {
  if (at === current || at < 0) return;
  current = at;
  mark(at);
  const parts = [];
  if (data.picture[at]) {
    const picture = element("img", "");
    picture.src = data.picture[at];
    picture.alt = "";
    parts.push(picture);
  }
  parts.push(element("p", `${data.likely[at]} likely positive`, "probability"));
  if (data.labelled[at]) parts.push(element("p", "labelled positive"));
  if (data.truth && data.truth[at] !== "not known") parts.push(element("p", `truly ${data.truth[at]}`));
  const key = element("p", "");
  key.append(element("bdi", data.key[at]));
  parts.push(key);
  if (data.problem[at]) parts.push(element("p", data.problem[at], "note"));
  card.replaceChildren(...parts);
}

function nearest(x, y, allowed = () => true, reach = Infinity) {
  let best = -1, least = reach * reach;
  places.forEach(([px, py], at) => {
    const distance = (px - x) ** 2 + (py - y) ** 2;
    if (distance < least && allowed(px - x, py - y, at)) [best, least] = [at, distance];
  });
  return best;
}

function look(event) {
  const box = drawing.getBoundingClientRect();
  const scale = WIDTH / box.width;
  const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
  show(nearest(x, y, undefined, REACH * Math.max(1, scale)));
}

plot.addEventListener("pointermove", look);
plot.addEventListener("pointerdown", look); // a finger does not hover

// --- keyboard ------------------------------------------------------------------------------------

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function likeliest() {
  let best = 0;
  data.posterior.forEach((posterior, at) => {
    const better = data.labelled[best] - data.labelled[at] || posterior - data.posterior[best];
    if (better > 0) best = at;
  });
  return best;
}

plot.addEventListener("focus", () => { if (current < 0) show(likeliest()); });

plot.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key === "Home") show(likeliest());
  else if (event.key in DIRECTIONS) {
    const [dx, dy] = DIRECTIONS[event.key];
    const [x, y] = places[current];
    // the nearest within a quarter turn around the direction
    show(nearest(x, y, (px, py, at) => at !== current && px * dx + py * dy > Math.abs(px * dy) + Math.abs(py * dx) - 1e-6));
  } else return;
  event.preventDefault();
});

// --- layouts -------------------------------------------------------------------------------------

const layout = document.getElementById("layout");
layout.hidden = !data.tsne;
layout.addEventListener("change", (event) => layOut(event.target.value));
layOut(data.tsne ? "tsne" : "pca");
