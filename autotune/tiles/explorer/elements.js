// Draws what autotune/tiles/kernel_picture.py made: every number and sentence comes from there. Here are places and colours.

const data = JSON.parse(document.getElementById("data").textContent);
const LANES = 32;
const COLUMNS = 32; // banks of shared memory, floats of a line of global memory
const SECTOR = data.sector;
const state = { view: 0, wave: 0, block: 0, warp: 0, lane: 0, step: 0, group: 0, instruction: 0 };
const REMEMBERED = ["view", "warp", "lane", "step", "group", "instruction"]; // in the address of the page
// Wavefronts one after the other: from dark to light, so that their order shows without colour, too.
const RAMP = [
  "#062238",
  "#0b3a5c",
  "#0f5180",
  "#1369a4",
  "#2f82bd",
  "#5199ce",
  "#76b1dd",
  "#9dc8ea",
  "#c6dff5",
];
const ONLY = 3; // the colour of one wavefront alone

const find = (selector) => document.querySelector(selector);
const number = (value) => value.toLocaleString("en-US");
const counted = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;
const view = () => data.views[state.view];

function node(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}
function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}
function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
function figure(section, label, width, height, ...children) {
  const drawing = draw(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    ...children,
  );
  find(`#${section} figure`).replaceChildren(drawing);
  return drawing;
}
const PAINTED = "fill fill-opacity stroke stroke-opacity stroke-width opacity font text-anchor dominant-baseline paint-order filter";
// Saves a section's drawing as PNG, twice as fine as the screen shows it, in the colours that it has there.
function savePng(section) {
  const drawing = find(`#${section} figure svg`);
  const { width, height } = drawing.getBoundingClientRect();
  const copy = fill(drawing.cloneNode(true), { width: 2 * width, height: 2 * height }, []);
  const made = [copy, ...copy.querySelectorAll("*")];
  [drawing, ...drawing.querySelectorAll("*")].forEach((shown, i) => {
    const style = getComputedStyle(shown);
    for (const name of PAINTED.split(" ")) made[i].style.setProperty(name, style.getPropertyValue(name));
  });
  const image = new Image();
  image.onload = () => {
    const canvas = node("canvas", { width: image.width, height: image.height });
    const paint = canvas.getContext("2d");
    paint.fillStyle = getComputedStyle(find(`#${section}`)).backgroundColor;
    paint.fillRect(0, 0, image.width, image.height);
    paint.drawImage(image, 0, 0);
    node("a", { href: canvas.toDataURL(), download: `${section}.png` }).click();
  };
  image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
}
function pngButton(section) {
  const label = `Save as PNG: ${section.querySelector("h2").textContent}`;
  const button = node("button", { type: "button", class: "png", "aria-label": label }, "PNG");
  button.addEventListener("click", () => savePng(section.id));
  section.append(button);
}
function text(selector, words) {
  find(selector).textContent = words;
}
function told(selector, ...parts) {
  find(selector).replaceChildren(
    ...parts.map((part) => (Array.isArray(part) ? node("b", {}, part[0]) : part)),
  );
}
const between = (value, least, most) => Math.min(Math.max(value, least), most);
