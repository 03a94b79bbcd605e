// A line chart of the last two minutes.

import { canvas, make } from "./dom.js";

const POINTS = 120;

export class Chart {
  #canvas = make("canvas", { role: "img" });
  #now = make("p", { class: "value" });
  #series = new Map();
  #title;
  #format;
  #least;

  // The scale reaches to `least` at least.
  constructor(title, about, format, least = 1e-9) {
    this.#title = title;
    this.#format = format;
    this.#least = least;
    this.element = make("div", { class: "card" }, make("h2", { class: "small" }, title), this.#now, this.#canvas, make("p", {}, about));
    this.#now.textContent = "–";
    this.#canvas.setAttribute("aria-label", `${title}: nothing yet`);
    new ResizeObserver(() => this.draw()).observe(this.#canvas);
    addEventListener("themechange", () => this.draw());
  }

  // A point of each series; null where there is none. Series that are left out end.
  push(points) {
    for (const name of Object.keys(points)) if (!this.#series.has(name)) this.#series.set(name, []);
    for (const [name, values] of this.#series) {
      values.push(points[name] ?? null);
      if (values.length > POINTS) values.shift();
      if (values.every((value) => value === null) && !(name in points)) this.#series.delete(name);
    }
    const shown = Object.entries(points).filter(([, value]) => value !== null);
    const text = shown.map(([name, value]) => (name ? `${name} ${this.#format(value)}` : this.#format(value))).join(" · ");
    this.#now.textContent = text.length > 70 ? `${shown.length} streams` : text || "–";
    this.#now.toggleAttribute("data-long", this.#now.textContent.length > 22);
    this.#canvas.setAttribute("aria-label", `${this.#title}: ${this.#now.textContent}`);
    this.draw();
  }

  draw() {
    if (!this.#canvas.clientWidth) return;
    const { context, width, height, colour } = canvas(this.#canvas);
    const values = [...this.#series.values()].flat().filter((value) => value !== null);
    const top = Math.max(...values, this.#least) * 1.15;
    context.strokeStyle = colour("line");
    context.lineWidth = 1;
    for (const share of [0, 0.5, 1]) {
      const y = Math.round((height - 1) * share) + 0.5;
      context.beginPath();
      context.moveTo(0, Math.min(y, height - 0.5));
      context.lineTo(width, Math.min(y, height - 0.5));
      context.stroke();
    }
    if (!values.length) return;
    context.fillStyle = colour("soft");
    context.font = "11px system-ui, sans-serif";
    context.fillText(this.#format(top), 3, 12);
    const colours = [colour("accent"), colour("warn"), colour("good"), colour("soft")];
    let at = 0;
    for (const points of this.#series.values()) {
      context.strokeStyle = colours[at++ % colours.length];
      context.lineWidth = 2;
      context.lineJoin = "round";
      context.beginPath();
      let isOpen = false;
      const dots = [];
      points.forEach((value, n) => {
        if (value === null) return void (isOpen = false);
        const x = width - (points.length - n) * (width / POINTS);
        const y = height - 1.5 - (value / top) * (height - 4);
        if (isOpen) context.lineTo(x, y);
        else {
          context.moveTo(x, y);
          // A point alone is a dot.
          if ((points[n + 1] ?? null) === null) dots.push([x, y]);
        }
        isOpen = true;
      });
      context.stroke();
      context.fillStyle = context.strokeStyle;
      for (const [x, y] of dots) {
        context.beginPath();
        context.arc(x, y, 2.5, 0, 2 * Math.PI);
        context.fill();
      }
    }
  }
}
