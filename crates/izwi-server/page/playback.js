// Audio that is kept while it arrives, so that it can be played, paused and sought at any time, before and after its end.

import { Player, RATE } from "./player.js";

// Samples that are given to the player at a time.
const PIECE = RATE * 10;

export class Playback {
  #player;
  #pieces = [];
  #from = 0;
  #before = { underruns: 0, silentMs: 0 };
  #isWhole = false;
  #isPaused = false;
  #isAtEnd = false;

  // To be called from a click: browsers start no sound without one.
  static async open() {
    return new Playback(await Player.open());
  }

  // The playback of audio that is there already, at its start and silent.
  static async of(pieces) {
    const playback = await Playback.open();
    playback.pause();
    playback.#pieces = pieces;
    playback.length = pieces.reduce((sum, piece) => sum + piece.length, 0);
    playback.#isWhole = true;
    playback.seek(0);
    return playback;
  }

  constructor(player) {
    this.#player = player;
    // In samples.
    this.length = 0;
    this.onplayed = this.ondone = this.onholding = this.onchange = () => {};
    player.onplayed = () => this.onplayed();
    player.onholding = (leftMs) => this.onholding(leftMs);
    player.ondone = () => {
      this.#isAtEnd = true;
      this.pause();
      this.ondone();
    };
  }

  get pieces() {
    return this.#pieces;
  }

  get isWhole() {
    return this.#isWhole;
  }

  get isPlaying() {
    return !this.#isPaused && !this.#isAtEnd;
  }

  // What was played up to, in samples.
  get position() {
    return Math.min(this.length, this.#from + this.#player.played);
  }

  get underruns() {
    return this.#before.underruns + this.#player.underruns;
  }

  get silentMs() {
    return this.#before.silentMs + this.#player.silentMs;
  }

  push(samples, holdMs = 0) {
    this.#pieces.push(samples);
    this.length += samples.length;
    this.#player.push(samples.slice(), holdMs);
  }

  // No more samples follow.
  finish() {
    this.#isWhole = true;
    this.#player.end();
  }

  // Ends where the samples end that came so far, silently.
  cut() {
    this.pause();
    this.#isWhole = true;
    this.seek(0);
  }

  playNow() {
    this.#player.playNow();
  }

  play() {
    if (this.#isAtEnd) this.seek(0);
    this.#isPaused = false;
    this.#player.pause(false);
    this.onchange();
  }

  pause() {
    this.#isPaused = true;
    this.#player.pause(true);
    this.onchange();
  }

  // Goes to a sample; plays on from there, or stays silent, as before.
  seek(sample) {
    this.#before = { underruns: this.underruns, silentMs: this.silentMs };
    this.#from = Math.max(0, Math.min(Math.round(sample), this.length));
    this.#isAtEnd = false;
    this.#player.clear();
    let at = 0;
    for (const piece of this.#pieces) {
      const first = Math.max(0, this.#from - at);
      for (let start = first; start < piece.length; start += PIECE) this.#player.push(piece.slice(start, start + PIECE));
      at += piece.length;
    }
    if (this.#isWhole) this.#player.end();
    this.onplayed();
    this.onchange();
  }

  close() {
    this.onplayed = this.ondone = this.onholding = this.onchange = () => {};
    this.#player.close();
  }
}
