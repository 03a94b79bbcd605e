// The waveform of audio that grows: a bar for each 40 ms, those that were played in another colour.

import { canvas } from "./dom.js";

const BAR_S = 0.04;
const [STEP_PX, BAR_PX] = [4, 2.5];

export class Waveform {
  #element;
  #follows;
  #rate = 1;
  #peaks = [];
  #open = 0;
  #count = 0;
  #played = 0;
  #drawing = false;

  // With `follows` the newest bars are at the right end; otherwise all fit into the width.
  constructor(element, { follows = false } = {}) {
    this.#element = element;
    this.#follows = follows;
    new ResizeObserver(() => this.#draw()).observe(element);
    addEventListener("themechange", () => this.#draw());
  }

  reset(rate) {
    this.#rate = rate;
    this.#peaks = [];
    this.#open = this.#count = this.#played = 0;
    this.#draw();
  }

  push(samples) {
    const length = Math.round(this.#rate * BAR_S);
    for (const sample of samples) {
      this.#open = Math.max(this.#open, Math.abs(sample));
      this.#count += 1;
      if (this.#count === length) {
        this.#peaks.push(this.#open);
        this.#open = this.#count = 0;
      }
    }
    if (this.#follows && this.#peaks.length > 4096) this.#peaks = this.#peaks.slice(-2048);
    this.#draw();
  }

  // The length of what all the bars show, in seconds.
  get length() {
    return this.#peaks.length * BAR_S;
  }

  // The time at a place of the width, from 0 to 1, in seconds. Bars may take less than the width.
  timeAt(share) {
    const room = Math.floor(this.#element.clientWidth / STEP_PX);
    const group = Math.max(1, Math.ceil(this.#peaks.length / room));
    return Math.min(this.length, ((share * this.#element.clientWidth) / STEP_PX) * group * BAR_S);
  }

  set played(seconds) {
    this.#played = seconds;
    this.#draw();
  }

  #draw() {
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => {
      this.#drawing = false;
      if (this.#element.clientWidth) this.#paint();
    });
  }

  #paint() {
    const { context, width, height, colour } = canvas(this.#element);
    const room = Math.floor(width / STEP_PX);
    const middle = height / 2;
    const group = this.#follows ? 1 : Math.max(1, Math.ceil(this.#peaks.length / room));
    const first = this.#follows ? Math.max(0, this.#peaks.length - room) : 0;
    const bars = [];
    for (let at = first; at < this.#peaks.length; at += group) {
      bars.push(Math.max(...this.#peaks.slice(at, at + group)));
    }
    context.fillStyle = colour("line");
    context.fillRect(0, middle - 0.5, width, 1);
    const heard = this.#follows ? Infinity : this.#played / BAR_S / group;
    const [accent, quiet] = [colour("accent"), colour("quiet")];
    bars.forEach((peak, at) => {
      // A curve that shows quiet sounds too.
      const high = Math.max(2, Math.pow(Math.min(1, peak), 0.6) * (height - 6));
      context.fillStyle = at < heard ? accent : quiet;
      context.beginPath();
      context.roundRect(at * STEP_PX, middle - high / 2, BAR_PX, high, BAR_PX / 2);
      context.fill();
    });
  }
}
