// The audio thread of the player: plays samples as they arrive and counts what was played and where nothing was there.

class PlayerProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.clear();
    this.tapped = false;
    this.quanta = 0;
    this.closed = false;
    this.port.onmessage = ({ data }) => {
      if (data.samples) {
        if (this.hold === null) this.hold = Math.round((data.holdMs / 1000) * sampleRate);
        this.queue.push(data.samples);
        this.waiting += data.samples.length;
      } else if (data.type === "end") this.ended = true;
      else if (data.type === "now") {
        this.hold = 0;
        this.tellHold();
      }
      else if (data.type === "clear") {
        this.clear();
        this.port.postMessage({ type: "cleared" });
      } else if (data.type === "tap") this.tapped = true;
      else if (data.type === "close") this.closed = true;
    };
  }

  clear() {
    Object.assign(this, { queue: [], at: 0, waiting: 0, played: 0, hold: null, ended: false, told: false });
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
    let filled = 0;
    const wasFirst = this.played === 0;
    // The head start that the server asked for, counted from the first audio.
    if (this.hold > 0) {
      // All has arrived: there is nothing to wait for.
      this.hold = this.ended ? 0 : this.hold - output.length;
      this.tellHold();
    } else
      while (filled < output.length && this.queue.length) {
        const [piece] = this.queue;
        const count = Math.min(piece.length - this.at, output.length - filled);
        output.set(piece.subarray(this.at, this.at + count), filled);
        filled += count;
        this.at += count;
        if (this.at === piece.length) {
          this.queue.shift();
          this.at = 0;
        }
      }
    this.played += filled;
    this.waiting -= filled;
    if (this.tapped && filled) this.port.postMessage({ type: "tap", samples: output.slice(0, filled) });
    if (filled < output.length && this.played && !this.ended) {
      this.underruns += this.dry ? 0 : 1;
      this.dry = true;
      this.silent += output.length - filled;
    } else if (filled) this.dry = false;
    const isDone = this.ended && !this.queue.length && !this.told;
    if (isDone) this.told = true;
    this.quanta += 1;
    if (isDone || (wasFirst && filled) || (this.quanta % 4 === 0 && this.played && !this.told)) {
      const { played, underruns, waiting } = this;
      this.port.postMessage({ type: isDone ? "done" : "played", played, underruns, waiting, silentMs: (this.silent / sampleRate) * 1000 });
    }
    return !this.closed;
  }
}

registerProcessor("izwi-player", PlayerProcessor);
