// The audio thread of the player: plays samples as they arrive, a little slower while few wait, and counts what was played and
// where nothing was there.

import { Stretcher } from "./stretch.js";

class PlayerProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.clear();
    this.tapped = this.exact = this.paused = false;
    this.quanta = 0;
    this.closed = false;
    this.port.onmessage = ({ data }) => {
      if (data.samples) {
        if (this.hold === null) this.hold = Math.round((data.holdMs / 1000) * sampleRate);
        this.stretcher.push(data.samples);
      } else if (data.type === "end") this.ended = true;
      else if (data.type === "now") {
        this.hold = 0;
        this.tellHold();
      }
      else if (data.type === "clear") {
        this.clear();
        this.port.postMessage({ type: "cleared" });
      } else if (data.type === "tap") this.tapped = true;
      else if (data.type === "exact") this.exact = true;
      else if (data.type === "pause") this.paused = data.isPaused;
      else if (data.type === "close") this.closed = true;
    };
  }

  clear() {
    Object.assign(this, { stretcher: new Stretcher(sampleRate), hold: null, ended: false, told: false });
    Object.assign(this, { underruns: 0, silent: 0, dry: false, toldHold: 0 });
  }

  // Tells in steps of a tenth of a second how long playback still waits, at last that it waits no more.
  tellHold() {
    const leftMs = Math.max(0, (this.hold / sampleRate) * 1000);
    const step = Math.ceil(leftMs / 100);
    if (step !== this.toldHold) this.port.postMessage({ type: "holding", leftMs });
    this.toldHold = step;
  }

  process(_inputs, [[output]]) {
    if (this.paused) return !this.closed;
    let filled = 0;
    const wasFirst = this.stretcher.played === 0;
    // The head start that the server asked for, counted from the first audio.
    if (this.hold > 0) {
      // All has arrived: there is nothing to wait for.
      this.hold = this.ended ? 0 : this.hold - output.length;
      this.tellHold();
    } else filled = this.stretcher.pull(output, !this.ended && !this.exact);
    const { played, added, waiting } = this.stretcher;
    if (this.tapped && filled) this.port.postMessage({ type: "tap", samples: output.slice(0, filled) });
    if (filled < output.length && played && !this.ended) {
      this.underruns += this.dry ? 0 : 1;
      this.dry = true;
      this.silent += output.length - filled;
    } else if (filled) this.dry = false;
    const isDone = this.ended && !waiting && !this.told;
    if (isDone) this.told = true;
    this.quanta += 1;
    if (isDone || (wasFirst && filled) || (this.quanta % 4 === 0 && played && !this.told)) {
      const { underruns } = this;
      const [silentMs, addedMs] = [this.silent, added].map((samples) => (samples / sampleRate) * 1000);
      this.port.postMessage({ type: isDone ? "done" : "played", played, underruns, waiting, silentMs, addedMs });
    }
    return !this.closed;
  }
}

registerProcessor("izwi-player", PlayerProcessor);
