// Plays speech a little slower while little of it waits, so that a late chunk makes no gap: waveform-similarity overlap-add
// (WSOLA), as crates/izwi-audio/src/stretch.rs. Knows no clock and no other file.

// Audio that waits in milliseconds: with this or more, playback is the source, bit for bit.
export const RELAXED_MS = 300;
// Audio that waits in milliseconds at and below which playback is slowest.
const URGENT_MS = 150;
// The most samples that are added, of those that are played.
export const MAX_STRETCH = 0.1;
// Shortest and longest stretch of audio that is repeated: one or more periods of a voice.
const MIN_LAG_MS = 2.5;
const MAX_LAG_MS = 15;
// Length of a crossfade, over which both sides must be alike.
const FADE_MS = 10;
// From one search for a repetition to the next.
const SEARCH_MS = 5;
// Rate of the first search, which the second one refines.
const COARSE_HZ = 12_000;
// Correlation from which on both sides are alike.
const ALIKE = 0.8;
// Mean square below which all sounds alike: silence.
const SILENCE = 1e-7;

// Plays the samples that are pushed, in order. While few wait it repeats a period of the voice now and then.
export class Stretcher {
  // The samples just played, and from `at` on those to play next, up to `end`.
  #samples;
  #at = 0;
  #end = 0;
  // Samples before those that are kept.
  #forgotten = 0;
  // A crossfade: where it came from, and how much of it was played; `null` without one.
  #fadeFrom = null;
  #fadeDone = 0;
  // Samples that may be added now, and how much of the source had been played when they were last counted.
  #credit = 0;
  #counted = 0;
  #untilSearch = 0;
  #perMs;
  #stride;
  #minLag;
  #maxLag;
  #fadeLength;
  #searchLength;

  // Samples of the source that were played, each counted once; samples that were added.
  played = 0;
  added = 0;

  constructor(rate) {
    this.#perMs = rate / 1000;
    const samplesOf = (ms) => Math.max(1, Math.floor(ms * this.#perMs));
    this.#stride = Math.max(1, Math.floor(rate / COARSE_HZ));
    this.#minLag = samplesOf(MIN_LAG_MS);
    this.#maxLag = samplesOf(MAX_LAG_MS);
    this.#fadeLength = samplesOf(FADE_MS);
    this.#searchLength = samplesOf(SEARCH_MS);
    this.#samples = new Float32Array(rate);
  }

  // Samples that were pushed and not played.
  get waiting() {
    return this.#end - this.#at;
  }

  // Adds samples to play.
  push(samples) {
    const kept = this.#maxLag + this.#fadeLength;
    if (this.#end + samples.length > this.#samples.length) {
      // A fade reads what lies behind the cursor too.
      const from = Math.max(0, this.#at - kept);
      const needed = this.#end - from + samples.length;
      const into = needed * 2 > this.#samples.length ? new Float32Array(needed * 2) : this.#samples;
      into.set(this.#samples.subarray(from, this.#end));
      this.#samples = into;
      this.#at -= from;
      this.#end -= from;
      this.#forgotten += from;
      if (this.#fadeFrom !== null) this.#fadeFrom -= from;
    }
    this.#samples.set(samples, this.#end);
    this.#end += samples.length;
  }

  // Fills `out` with the next samples and returns how many there were. `more` says whether others may come: if not, nothing is
  // to be gained from playing slower.
  pull(out, more) {
    for (let count = 0; count < out.length; count += 1) {
      if (this.#untilSearch === 0 && this.#fadeFrom === null) {
        this.#untilSearch = this.#searchLength;
        this.#spend(more);
      }
      if (this.#at === this.#end) return count;
      let sample = this.#samples[this.#at];
      if (this.#fadeFrom !== null) {
        const weight = (this.#fadeDone + 0.5) / this.#fadeLength;
        sample = this.#samples[this.#fadeFrom + this.#fadeDone] * (1 - weight) + sample * weight;
        this.#fadeDone += 1;
        if (this.#fadeDone === this.#fadeLength) this.#fadeFrom = null;
      }
      out[count] = sample;
      this.#at += 1;
      this.#untilSearch = Math.max(0, this.#untilSearch - 1);
      this.played = Math.max(this.played, this.#forgotten + this.#at);
    }
    return out.length;
  }

  // Earns what the wait for more samples allows, and repeats something once there is enough for any of the repetitions: a part of
  // them would have a worse best one.
  #spend(more) {
    const progress = this.played - this.#counted;
    this.#counted = this.played;
    const waitingMs = more ? this.waiting / this.#perMs : Infinity;
    if (waitingMs >= RELAXED_MS) {
      this.#credit = 0;
      return;
    }
    const need = Math.min(1, (RELAXED_MS - waitingMs) / (RELAXED_MS - URGENT_MS));
    this.#credit = Math.min(this.#credit + MAX_STRETCH * need * progress, this.#maxLag);
    if (this.#credit < this.#maxLag || this.waiting < this.#fadeLength) return;
    const lag = this.#bestLag();
    if (lag === null) return;
    this.#fadeFrom = this.#at;
    this.#fadeDone = 0;
    this.#at -= lag;
    this.#credit -= lag;
    this.added += lag;
  }

  // How many samples to go back so that what follows there is most like what follows here; `null` if nothing is.
  #bestLag() {
    const maxLag = this.#maxLag;
    const search = (from, to, stride) => {
      let [best, lag] = [-Infinity, from];
      for (let next = from; next <= to; next += stride) {
        const likeness = this.#likeness(next, stride);
        if (likeness > best) [best, lag] = [likeness, next];
      }
      return [best, lag];
    };
    const [, near] = search(this.#minLag, maxLag, this.#stride);
    const reach = this.#stride - 1;
    const [likeness, lag] = search(Math.max(this.#minLag, near - reach), Math.min(maxLag, near + reach), 1);
    return likeness >= ALIKE ? lag : null;
  }

  // Correlation of the next samples with those `lag` before them, of every `stride`th sample; 1 in silence.
  #likeness(lag, stride) {
    const samples = this.#samples;
    const end = this.#at + this.#fadeLength;
    let [product, here, there] = [0, 0, 0];
    for (let at = this.#at; at < end; at += stride) {
      const a = samples[at];
      const b = samples[at - lag];
      product += a * b;
      here += a * a;
      there += b * b;
    }
    const silence = (SILENCE * this.#fadeLength) / stride;
    if (Math.max(here, there) <= silence) return 1;
    return product / Math.max(Math.sqrt(here * there), silence);
  }
}
