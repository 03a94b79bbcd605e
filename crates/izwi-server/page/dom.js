// Small tools of all pages: elements, numbers as text, and what a canvas needs.

export const $ = (id) => document.getElementById(id);

// An element: `make("p", { class: "soft", onclick }, "text", child)`. Text is never read as HTML.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

// Changes the text of an element only where it differs, so that screen readers hear news alone.
export function say(element, text, kind = "") {
  if (element.textContent !== text) element.textContent = text;
  element.dataset.kind = kind;
}

export const sayError = (element, error) => say(element, error.message ?? String(error), "error");

// Fills a select, and keeps its choice where that is still there. `data-wanted` is a choice that may come later.
export function choices(select, options, empty) {
  const { wanted } = select.dataset;
  const before = options.some(({ value }) => value === wanted) ? wanted : select.value;
  const shown = options.length ? options : [{ value: "", label: empty }];
  const same =
    select.options.length === shown.length &&
    shown.every(({ value, label }, at) => select.options[at].value === value && select.options[at].text === label);
  if (!same) {
    select.replaceChildren(...shown.map(({ value, label }) => new Option(label, value)));
    const kept = shown.find(({ value }) => value === before) ?? shown.find(({ selected }) => selected) ?? shown[0];
    select.value = kept.value;
  }
  select.disabled = !options.length;
}

export const ms = (value) => (value === null || value === undefined ? "–" : `${Math.round(value)} ms`);
export const seconds = (value) => `${value.toFixed(value < 10 ? 2 : 1)} s`;
export const factor = (value) => (Number.isFinite(value) ? value.toFixed(value < 0.1 ? 3 : 2) : "–");

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; count >= 1000 && unit < units.length - 1; unit += 1) count /= 1000;
  return `${unit && count < 100 ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}

// A button: `button("Copy", copy, { class: "slim" })`.
export const button = (label, onclick, attributes = {}) => make("button", { type: "button", class: "slim", onclick, ...attributes }, label);

// Replaces the children of a list where they differ, so that rows keep their place and the focus.
export function fill(list, elements) {
  if (elements.length !== list.children.length || elements.some((element, at) => list.children[at] !== element)) {
    list.replaceChildren(...elements);
  }
}

export function clock(total_s) {
  const whole = Math.floor(total_s);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  const two = (number) => String(number).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

// A drawing context in CSS pixels, cleared, with the colours of the page.
export function canvas(element) {
  const { clientWidth: width, clientHeight: height } = element;
  const scale = window.devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
  if (element.width !== wide || element.height !== high) [element.width, element.height] = [wide, high];
  const context = element.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  const style = getComputedStyle(element);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  return { context, width, height, colour };
}

// Saves bytes as a file of the user.
export function save(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
