// Numbers as people read them, and elements made without markup, so that no text of a run can become code.
function short(number) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(number) >= 0.9995 * size) return Number((number / size).toPrecision(3)) + unit;
  }
  return String(Number(number.toPrecision(4)));
}
function bytes(number) {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (number >= size) return Number((number / size).toPrecision(3)) + " " + unit;
  }
  return number + " B";
}
function percent(share, digits = 1) { return (100 * share).toFixed(digits) + "%"; }
function milliseconds(seconds) { return Number((1e3 * seconds).toPrecision(3)) + " ms"; }
function duration(seconds) {
  if (seconds < 120) return Math.round(seconds) + " s";
  return seconds < 7200 ? Math.round(seconds / 60) + " min" : (seconds / 3600).toFixed(1) + " h";
}
function plainNumber(number) { return number.toLocaleString("en", { maximumFractionDigits: 4 }); }
const FORMATS = { count: short, bytes, percent: (share) => percent(share, 2), seconds: milliseconds, number: (n) => String(Number(n.toPrecision(4))) };

function make(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
  return element;
}
function el(name, attributes = {}, ...children) { return make(document.createElement(name), attributes, children); }
function svg(name, attributes = {}, ...children) {
  return make(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}
function place(id) { return document.getElementById(id); }
function fill(id, ...children) { const box = place(id); box.replaceChildren(...children.flat().filter(Boolean)); return box; }

const tip = {
  show(event, title, lines) {
    const box = fill("tip", el("b", {}, title), lines.map((line) => el("div", {}, line)));
    box.hidden = false;
    const around = event.target.getBoundingClientRect();
    const x = event.clientX || around.right, y = event.clientY || around.top;
    const size = box.getBoundingClientRect();
    box.style.left = Math.max(8, Math.min(x + 14, innerWidth - size.width - 8)) + "px";
    box.style.top = (y + 18 + size.height > innerHeight ? y - size.height - 12 : y + 18) + "px";
  },
  hide() { place("tip").hidden = true; },
};
function hover(title, lines) {
  const show = (event) => tip.show(event, title, lines);
  return { onpointerenter: show, onpointermove: show, onpointerleave: tip.hide, onfocus: show, onblur: tip.hide };
}
