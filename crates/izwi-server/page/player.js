// Gapless playback of audio that is still being generated.

// The rate of all audio that the page plays: the server resamples where a model has another.
export const RATE = 24_000;

export class Player {
  // Set by a test: receives the samples that were played.
  static tap = null;
  // Set by a test: plays the samples as they are, however few wait.
  static exact = false;
  static #shared = null;

  #node;
  #context;

  // To be called from a click: browsers start no sound without one.
  static async open() {
    if (!globalThis.AudioWorkletNode || !globalThis.isSecureContext) {
      throw new Error("Browsers play streamed audio on https or localhost only. Open this page there, or through an SSH tunnel.");
    }
    if (!Player.#shared) {
      const context = new AudioContext({ sampleRate: RATE, latencyHint: "interactive" });
      Player.#shared = context.audioWorklet.addModule("/page/player-worklet.js").then(() => context);
      Player.#shared.catch(() => (Player.#shared = null));
    }
    const context = await Player.#shared;
    if (context.state !== "running") await context.resume();
    return new Player(context);
  }

  constructor(context) {
    this.#context = context;
    this.#node = new AudioWorkletNode(context, "izwi-player", { numberOfInputs: 0, outputChannelCount: [1] });
    this.#node.connect(context.destination);
    this.played = 0;
    this.underruns = 0;
    this.silentMs = 0;
    this.addedMs = 0;
    this.onplayed = this.ondone = this.onholding = () => {};
    // Messages of what was dropped are not counted.
    this.epoch = 0;
    let heard = 0;
    if (Player.tap) this.#node.port.postMessage({ type: "tap" });
    if (Player.exact) this.#node.port.postMessage({ type: "exact" });
    this.#node.port.onmessage = ({ data }) => {
      if (data.type === "cleared") heard += 1;
      else if (heard !== this.epoch) return;
      else if (data.type === "tap") Player.tap?.(data.samples);
      else if (data.type === "holding") this.onholding(data.leftMs);
      else {
        const { played, underruns, silentMs, addedMs } = data;
        Object.assign(this, { played, underruns, silentMs, addedMs });
        this.onplayed();
        if (data.type === "done") this.ondone();
      }
    };
  }

  // Samples from -1 to 1. Playback begins `holdMs` after the first.
  push(samples, holdMs = 0) {
    this.#node.port.postMessage({ samples, holdMs }, [samples.buffer]);
  }

  // Waits no longer, whatever was asked for.
  playNow() {
    this.#node.port.postMessage({ type: "now" });
  }

  // Holds still, or goes on where it stopped.
  pause(isPaused) {
    this.#node.port.postMessage({ type: "pause", isPaused });
  }

  // No more samples follow.
  end() {
    this.#node.port.postMessage({ type: "end" });
  }

  // Falls silent and forgets what was not played.
  clear() {
    this.epoch += 1;
    this.played = this.underruns = this.silentMs = this.addedMs = 0;
    this.#node.port.postMessage({ type: "clear" });
  }

  get playedMs() {
    return (this.played / this.#context.sampleRate) * 1000;
  }

  close() {
    this.#node.port.onmessage = null;
    this.#node.port.postMessage({ type: "close" });
    this.#node.disconnect();
  }
}

// 16-bit little-endian samples as numbers from -1 to 1.
export function fromPcm(buffer) {
  const view = new DataView(buffer);
  const samples = new Float32Array(buffer.byteLength >> 1);
  for (let at = 0; at < samples.length; at += 1) samples[at] = view.getInt16(at * 2, true) / 32768;
  return samples;
}

// Numbers from -1 to 1 as 16-bit little-endian samples.
export function toPcm(samples) {
  const view = new DataView(new ArrayBuffer(samples.length * 2));
  samples.forEach((sample, at) => {
    view.setInt16(at * 2, Math.max(-32768, Math.min(32767, Math.round(sample * 32768))), true);
  });
  return view.buffer;
}

// A WAV file of mono samples. http://soundfile.sapp.org/doc/WaveFormat/
export function wav(pieces, rate) {
  const length = pieces.reduce((sum, piece) => sum + piece.length * 2, 0);
  const header = new DataView(new ArrayBuffer(44));
  const text = (at, name) => [...name].forEach((letter, n) => header.setUint8(at + n, letter.charCodeAt(0)));
  text(0, "RIFF");
  header.setUint32(4, 36 + length, true);
  text(8, "WAVEfmt ");
  header.setUint32(16, 16, true);
  header.setUint16(20, 1, true);
  header.setUint16(22, 1, true);
  header.setUint32(24, rate, true);
  header.setUint32(28, rate * 2, true);
  header.setUint16(32, 2, true);
  header.setUint16(34, 16, true);
  text(36, "data");
  header.setUint32(40, length, true);
  return new Blob([header.buffer, ...pieces.map(toPcm)], { type: "audio/wav" });
}
