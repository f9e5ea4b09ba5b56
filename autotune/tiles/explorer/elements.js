"use strict";
// Draws what autotune/tiles/kernel_picture.py made: every number and sentence comes from there. Here are places and colours.

const data = JSON.parse(document.getElementById("data").textContent);
const LANES = 32;
const COLUMNS = 32; // banks of shared memory, floats of a line of global memory
const SECTOR = data.sector;
const state = { view: 0, wave: 0, block: 0, warp: 0, lane: 0, step: 0, group: 0, instruction: 0 };
const REMEMBERED = ["view", "warp", "lane", "step", "group", "instruction"]; // in the address of the page
// Wavefronts one after the other: from dark to light, so that their order shows without colour, too.
const RAMP = [
  "#440154",
  "#472d7b",
  "#3b528b",
  "#2c728e",
  "#21918c",
  "#28ae80",
  "#5ec962",
  "#addc30",
  "#fde725",
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
function text(selector, words) {
  find(selector).textContent = words;
}
function told(selector, ...parts) {
  find(selector).replaceChildren(
    ...parts.map((part) => (Array.isArray(part) ? node("b", {}, part[0]) : part)),
  );
}
const between = (value, least, most) => Math.min(Math.max(value, least), most);
