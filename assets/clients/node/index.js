// The client: requests over HTTP, and sessions of speech and live transcription over WebSocket.
// Options and results have the names of the HTTP API and of docs/protocol.md.

import { IzwiError, Socket, errorOfResponse, protocolsOf, unreachable } from "./socket.js";

export { IzwiError };

const DEFAULT_URL = "http://127.0.0.1:8080";

export class Client {
  #baseUrl;
  #apiKey;
  #WebSocket;

  constructor({ baseUrl, apiKey, WebSocket = globalThis.WebSocket } = {}) {
    const url = baseUrl ?? pageOrigin() ?? DEFAULT_URL;
    if (!/^https?:\/\//.test(url)) {
      throw new TypeError(`baseUrl '${url}' is neither http nor https; give one such as ${DEFAULT_URL}`);
    }
    this.#baseUrl = url.replace(/\/+$/, "");
    this.#apiKey = apiKey;
    this.#WebSocket = WebSocket;
  }

  get baseUrl() {
    return this.#baseUrl;
  }

  /** The whole audio of a text. */
  async speak(text, { signal, ...options } = {}) {
    const body = { model: "tts-1", response_format: "wav", ...speechMembers(options), input: text };
    const response = await this.#request("/v1/audio/speech", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
    return new Uint8Array(await response.arrayBuffer());
  }

  /** Chunks of audio while it is generated. `text` may come in pieces, as a language model writes it. */
  stream(text, options = {}) {
    const pieces = typeof text === "string" ? [text] : text;
    return new SpeechStream(() => this.#open("/v1/audio/speech/stream"), pieces, options);
  }

  /** The transcript of a recording with its segments, and with its words where `word_times` is set. */
  async transcribe(audio, { word_times = false, ...options } = {}) {
    const granularities = word_times ? { timestamp_granularities: ["segment", "word"] } : {};
    const response = await this.#transcription(audio, { ...options, ...granularities }, "verbose_json");
    return response.json();
  }

  /** The text of a recording as subtitles: `srt` (default) or `vtt`. */
  async subtitles(audio, { response_format = "srt", ...options } = {}) {
    return (await this.#transcription(audio, options, response_format)).text();
  }

  /** Text while it is spoken: `audio` gives mono PCM of 16 bits as it is recorded, and its end ends the session. */
  async *transcribeLive(audio, { signal, ...options } = {}) {
    const socket = await this.#open("/v1/audio/transcriptions/stream");
    const stop = closeOnAbort(socket, signal);
    try {
      socket.send("session.config", options);
      socket.feed(audio, (piece) => piece);
      for (;;) {
        const event = await socket.receive();
        if (event.type === "session.done") return;
        if (LIVE_EVENTS.has(event.type)) yield event;
      }
    } finally {
      stop();
      socket.close();
    }
  }

  /** Voices of a loaded model, or of all of them, and saved voices. */
  async voices(model) {
    const query = model === undefined ? "" : `?${new URLSearchParams({ model })}`;
    return (await (await this.#request(`/v1/audio/voices${query}`)).json()).voices;
  }

  async models() {
    return (await (await this.#request("/v1/models")).json()).data;
  }

  async #transcription(audio, { signal, ...options }, response_format) {
    const form = new FormData();
    const file = audio instanceof Blob ? audio : new Blob([audio]);
    form.append("file", file, file.name ?? "recording");
    for (const [name, value] of Object.entries({ model: "whisper-1", ...options, response_format })) {
      if (value === undefined) continue;
      if (Array.isArray(value)) value.forEach((each) => form.append(`${name}[]`, each));
      else form.append(name, String(value));
    }
    return this.#request("/v1/audio/transcriptions", { method: "POST", body: form, signal });
  }

  async #request(path, init = {}) {
    const headers = { ...init.headers };
    if (this.#apiKey) headers.Authorization = `Bearer ${this.#apiKey}`;
    let response;
    try {
      response = await fetch(this.#baseUrl + path, { ...init, headers });
    } catch (why) {
      if (init.signal?.aborted) throw why;
      throw unreachable(this.#baseUrl, why);
    }
    if (!response.ok) throw await errorOfResponse(response);
    return response;
  }

  async #open(path) {
    if (!this.#WebSocket) {
      throw new IzwiError(
        "this runtime has no WebSocket: use Node.js 22 or later, or pass one, such as that of the package ws, as " +
          "new Client({ WebSocket })",
      );
    }
    let url = `ws${this.#baseUrl.slice("http".length)}${path}`;
    let protocols = protocolsOf(this.#apiKey);
    if (protocols === null) {
      const { ticket } = await (await this.#request("/v1/tickets", { method: "POST" })).json();
      url += `?${new URLSearchParams({ ticket })}`;
      protocols = [];
    }
    try {
      return await Socket.open(this.#WebSocket, url, protocols);
    } catch (why) {
      // A WebSocket does not tell why it was refused; a request does.
      await this.models();
      throw why;
    }
  }
}

const LIVE_EVENTS = new Set(["speech.started", "partial", "committed", "turn.speakers", "turn.end"]);

/**
 * Iterates over the chunks of a speech session; leaving the loop closes the session.
 *
 * Each chunk that is handed out reports playback to the server: by the clock, as if the first one were played when it was
 * taken. A player that knows better calls `played`.
 */
export class SpeechStream {
  /** The utterances that ended, as `audio.done` tells them. */
  utterances = [];
  /** Of the chunks, in Hz; 0 before the first one. */
  sampleRate = 0;
  #opened;
  #stop = () => {};
  #options;
  #text;
  #isDone = false;
  #reportsItself = false;
  #utterance = 0;
  #takenSamples = 0;
  #startedMs;

  constructor(open, text, { signal, ...options }) {
    this.#text = text;
    this.#options = speechMembers(options);
    this.#opened = open().then((socket) => {
      this.#stop = closeOnAbort(socket, signal);
      if (this.#isDone) socket.close();
      else this.#begin(socket);
      return socket;
    });
    // It is reported by the first call that needs the socket.
    this.#opened.catch(() => {});
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  async next() {
    while (!this.#isDone) {
      const chunk = await this.#take();
      if (chunk.type !== "audio.chunk") continue;
      await this.#report();
      return { done: false, value: chunk };
    }
    await this.close();
    return { done: true, value: undefined };
  }

  async return() {
    await this.close();
    return { done: true, value: undefined };
  }

  /**
   * Reports how much of the utterance of the last chunk was played, in place of the clock, and the silence that was heard in it
   * because audio was missing.
   */
  async played(playedMs, gapMs) {
    this.#reportsItself = true;
    const socket = await this.#opened;
    const gap = gapMs === undefined ? {} : { gap_ms: Math.round(gapMs) };
    socket.send("playback.ack", { utterance: this.#utterance, played_ms: Math.round(playedMs), ...gap });
  }

  /** Ends the speech, and tells what was heard of it. Without `playedMs` the last report decides. */
  async interrupt(playedMs) {
    const socket = await this.#opened;
    const members = { utterance: this.#utterance, played_ms: Math.round(playedMs) };
    socket.send("interrupt", playedMs === undefined ? {} : members);
    for (;;) {
      const event = await this.#take();
      if (event.type === "interrupted") {
        await this.close();
        return event;
      }
      if (this.#isDone) throw new IzwiError("the session was over before the interruption", { code: "connection_closed" });
    }
  }

  async close() {
    this.#isDone = true;
    this.#stop();
    await this.#opened.then((socket) => socket.close(), () => {});
  }

  #begin(socket) {
    socket.send("session.config", { model: "tts-1", ...this.#options });
    socket.feed(this.#text, (text) => ({ type: "input.text", text }));
  }

  /** The next frame; a chunk has the bytes of the binary frame behind it. */
  async #take() {
    try {
      const socket = await this.#opened;
      const event = await socket.receive();
      if (event.type === "session.created") this.sampleRate = event.sample_rate;
      if (event.type === "audio.done") this.utterances.push(event);
      if (event.type === "session.done") this.#isDone = true;
      if (event.type !== "audio.chunk") return event;
      if (event.utterance !== this.#utterance || event.seq === 0) {
        [this.#utterance, this.#takenSamples, this.#startedMs] = [event.utterance, 0, undefined];
      }
      this.#takenSamples += event.samples;
      return { ...event, sample_rate: this.sampleRate, data: await socket.receive() };
    } catch (why) {
      await this.close();
      throw why;
    }
  }

  async #report() {
    if (this.#reportsItself) return;
    const now = performance.now();
    this.#startedMs ??= now;
    const received = (this.#takenSamples * 1000) / this.sampleRate;
    const played_ms = Math.floor(Math.min(now - this.#startedMs, received));
    (await this.#opened).send("playback.ack", { utterance: this.#utterance, played_ms });
  }
}

/** The members of speech, with a recording of a voice as base64. */
function speechMembers(options) {
  const { ref_audio } = options;
  if (ref_audio === undefined || typeof ref_audio === "string") return options;
  let text = "";
  for (const byte of new Uint8Array(ref_audio)) text += String.fromCharCode(byte);
  return { ...options, ref_audio: btoa(text) };
}

function closeOnAbort(socket, signal) {
  const abort = () => socket.fail(signal.reason);
  if (signal?.aborted) abort();
  signal?.addEventListener("abort", abort, { once: true });
  return () => signal?.removeEventListener("abort", abort);
}

/** The address of the page, where there is one. */
function pageOrigin() {
  const origin = globalThis.location?.origin;
  return origin?.startsWith("http") ? origin : undefined;
}
