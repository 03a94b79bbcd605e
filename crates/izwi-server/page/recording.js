// A live transcript of the microphone, and who says what in it.

import { socket } from "./api.js";
import { capture } from "./capture.js";
import { cues } from "./captions.js";
import { say } from "./dom.js";
import { toPcm, wav } from "./player.js";
import { Transcript } from "./transcript.js";

// The words of a turn, and the speakers of its first ones: of a word later ones say nothing yet.
class Turn {
  words = [];
  speakers = [];

  #speaker({ start }) {
    if (start === null || start * 1000 >= (this.speakers.at(-1)?.end_ms ?? 0)) return undefined;
    // The times of words are rounded.
    return this.speakers.findLast((said) => said.start_ms <= start * 1000 + 1)?.speaker;
  }

  // Segments that can be read, of one speaker each.
  segments() {
    const runs = [];
    for (const word of this.words) {
      // One without a time is said by whom the one before it is.
      const speaker = word.start === null && runs.length ? runs.at(-1).speaker : this.#speaker(word);
      if (runs.length && runs.at(-1).speaker === speaker) runs.at(-1).words.push(word);
      else runs.push({ speaker, words: [word] });
    }
    return runs.flatMap(({ speaker, words }) => {
      const isTimed = words.every((word) => word.start !== null);
      const found = isTimed ? cues(words) : [{ start: this.start, end: this.end, words }];
      return found.map((segment) => ({ start: segment.start, end: segment.end, words: segment.words, speaker }));
    });
  }
}

function wordsOf({ text, words }) {
  const said = (words ?? []).map((word) => ({ gap: " ", text: word.text.trim(), start: word.start_ms / 1000, end: word.end_ms / 1000 }));
  // A text whose words could not be found in the audio.
  return said.length || !text.trim() ? said : [{ gap: " ", text: text.trim(), start: null, end: null }];
}

// `over` is settled at the end.
export class Recording {
  #options;
  #tell;
  #level;
  #pieces = [];
  // What was recorded before the session was there.
  #early = [];
  #turns = new Map();
  #recorder = null;
  #channel = null;
  #transcript = null;
  // An error after which the session may go on.
  #fault = null;
  #isReady = false;
  #isFinishing = false;
  #isOver = false;
  #ended;

  // `options` is {model, language, tellsSpeakers}. `tell` says how it goes, `level` takes the samples.
  constructor(options, { tell, level }) {
    this.#options = options;
    this.#tell = tell;
    this.#level = level;
    this.over = new Promise((resolve) => (this.#ended = resolve));
  }

  // Opens the microphone and a session. Returns the rate of the samples, or nothing where that fails, which is told.
  async open() {
    try {
      this.#recorder = await capture((samples) => this.#heard(samples));
      this.#channel = await socket("/v1/audio/transcriptions/stream");
    } catch (error) {
      return void this.#end(error.message, "error");
    }
    const { model, language } = this.#options;
    const name = `Recording ${new Date().toLocaleTimeString()}`;
    this.#transcript = new Transcript({ name, model, language: language || null, duration: null, segments: [] });
    this.#channel.onmessage = ({ data }) => this.#told(JSON.parse(data));
    this.#channel.onclose = () => this.#end(this.#fault ?? "The connection was lost.", "error");
    this.#configure();
    this.#tell("Listening: speak now");
    return this.#recorder.rate;
  }

  // Ends the recording; what was said until then is still transcribed.
  finish() {
    if (this.#isFinishing || !this.#channel) return;
    this.#isFinishing = true;
    this.#tell("Finishing");
    this.#recorder.stop();
    if (this.#isReady) this.#done();
  }

  #configure() {
    const { model, language, tellsSpeakers } = this.#options;
    const config = { model, sample_rate: this.#recorder.rate, word_times: true };
    if (language) config.language = language;
    if (tellsSpeakers) config.speakers = true;
    this.#channel.send(JSON.stringify({ type: "session.config", ...config }));
  }

  #heard(samples) {
    if (this.#isFinishing) return;
    this.#pieces.push(samples);
    this.#level(samples);
    if (this.#isReady) this.#channel.send(toPcm(samples));
    else this.#early.push(samples);
  }

  #done() {
    this.#channel.send(JSON.stringify({ type: "input.done" }));
  }

  #turn(number) {
    if (!this.#turns.has(number)) this.#turns.set(number, new Turn());
    return this.#turns.get(number);
  }

  #show(number) {
    this.#transcript.setTurn(number, this.#turn(number).segments());
  }

  #told(event) {
    if (event.type === "session.created") {
      this.#isReady = true;
      this.#early.splice(0).forEach((samples) => this.#channel.send(toPcm(samples)));
      if (this.#isFinishing) this.#done();
    } else if (event.type === "speech.started") this.#tell("Listening");
    else if (event.type === "partial") this.#transcript.partial = event.text;
    else if (event.type === "committed") {
      this.#turn(event.turn).words.push(...wordsOf(event));
      this.#show(event.turn);
    } else if (event.type === "turn.speakers") {
      this.#turn(event.turn).speakers = event.segments;
      this.#show(event.turn);
    } else if (event.type === "turn.end") {
      this.#transcript.partial = "";
      const turn = this.#turn(event.turn);
      [turn.start, turn.end] = [event.start_ms / 1000, event.end_ms / 1000];
      this.#show(event.turn);
    } else if (event.type === "error") this.#failed(event);
    else if (event.type === "session.done") this.#end("Done");
  }

  // Words are told where speakers cannot be.
  #failed({ param, message }) {
    const isOfSpeakers = this.#options.tellsSpeakers && (this.#isReady || param === "speakers");
    if (!isOfSpeakers) return void this.#end(message, "error");
    this.#fault = message;
    say(this.#transcript.status, `Speakers are not told: ${message}`, "error");
    if (this.#isReady) return;
    this.#options = { ...this.#options, tellsSpeakers: false };
    this.#configure();
  }

  async #end(message, kind) {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#isFinishing = true;
    await this.#recorder?.stop();
    this.#channel?.close();
    if (this.#transcript) {
      this.#transcript.recording = wav(this.#pieces, this.#recorder.rate);
      this.#transcript.script.duration = this.#pieces.reduce((sum, piece) => sum + piece.length, 0) / this.#recorder.rate;
      this.#transcript.done("");
    }
    this.#tell(message, kind);
    this.#ended();
  }
}
