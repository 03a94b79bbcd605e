// One text spoken over the WebSocket, played while it arrives. docs/protocol.md describes every message.

import { ApiError, socket } from "./api.js";
import { Playback } from "./playback.js";
import { RATE, fromPcm } from "./player.js";

const ACK_MS = 400;

// Speaks `config` with its `text`. `on` has: audio(samples), word({start, end}) in characters and `startMs`, `endMs` of the
// whole audio, start({voice, model}), first(ms, serverMs), warning(text), holding(ms) while playback waits for a head start.
// Returns {stop(), playNow(), playback, generated, done}: `generated` ends with {duration_s, rtf, ttfa_ms, interrupted} once
// all audio is there, `done` once it was played to its end or stopped. The caller closes `playback`.
export async function speak(config, on) {
  const asked = performance.now();
  const player = await Playback.open();
  let channel;
  try {
    channel = await socket("/v1/audio/speech/stream");
  } catch (error) {
    player.close();
    throw error;
  }
  const state = { utterances: new Map(), received: 0, hold: 0, first_ms: null, interrupted: false, acked: 0 };
  const results = [];
  const send = (type, members = {}) => {
    if (channel.readyState === WebSocket.OPEN) channel.send(JSON.stringify({ type, ...members }));
  };
  let isOver = false;
  let [tellGenerated, tellPlayed, fail] = [];
  const generated = new Promise((resolve, reject) => ([tellGenerated, fail] = [resolve, reject]));
  const played = new Promise((resolve) => (tellPlayed = resolve));
  const done = generated.then(() => played);
  // Whoever waits for one of them need not wait for the other.
  done.catch(() => {});
  // Nothing more comes from the server.
  const end = (error) => {
    if (isOver) return;
    isOver = true;
    channel.onclose = channel.onmessage = null;
    clearInterval(acks);
    channel.close();
    if (error) {
      player.close();
      return fail(error);
    }
    const processing = results.reduce((sum, { rtf, duration_s }) => sum + rtf * duration_s, 0);
    const duration = results.reduce((sum, result) => sum + result.duration_s, 0);
    const [{ ttfa_ms = null } = {}] = results;
    tellGenerated({ duration_s: state.received / RATE, rtf: processing / duration, ttfa_ms, interrupted: state.interrupted });
  };

  // The utterance that is played, and what was played of it.
  const playing = () => {
    let found = null;
    for (const [number, { from }] of state.utterances) if (from < player.position || from === 0) found = { number, from };
    return found && { utterance: found.number, played_ms: Math.max(0, Math.round(((player.position - found.from) / RATE) * 1000)) };
  };
  // The same, and the silence that was heard within it.
  const report = () => {
    const members = playing();
    const utterance = state.utterances.get(members.utterance);
    utterance.silentMs ??= members.utterance === 0 ? 0 : player.silentMs;
    return { ...members, gap_ms: Math.round(player.silentMs - utterance.silentMs) };
  };
  const acks = setInterval(() => {
    if (player.position > state.acked) {
      state.acked = player.position;
      send("playback.ack", report());
    } else send("ping");
  }, ACK_MS);

  player.onplayed = () => {
    if (state.first_ms === null && player.position) {
      state.first_ms = performance.now() - asked;
      on.first?.(state.first_ms);
    }
    on.played?.();
  };
  player.ondone = () => tellPlayed();
  player.onholding = (leftMs) => on.holding?.(leftMs);

  channel.onmessage = ({ data }) => {
    if (data instanceof ArrayBuffer) {
      const samples = fromPcm(data);
      state.received += samples.length;
      on.audio?.(samples);
      return player.push(samples, state.hold);
    }
    const event = JSON.parse(data);
    if (event.type === "session.created") on.ignored?.(event.ignored_fields ?? []);
    else if (event.type === "audio.start") {
      state.utterances.set(event.utterance, { from: state.received });
      state.hold = event.prebuffer_ms;
      on.start?.(event);
    } else if (event.type === "word") {
      const from = (state.utterances.get(event.utterance).from / RATE) * 1000;
      on.word?.({ text: event.text, startMs: from + event.start_ms, endMs: from + event.end_ms });
    } else if (event.type === "warning") on.warning?.(event.message);
    else if (event.type === "audio.pause") {
      on.warning?.(`The machine is too busy: speech goes on in about ${Math.ceil(event.expected_ms / 1000)} s.`);
    }
    else if (event.type === "audio.done") {
      results.push(event);
      on.result?.(event);
    } else if (event.type === "error") end(new ApiError(0, event));
    else if (event.type === "session.done") {
      player.finish();
      end();
      if (!state.received) tellPlayed();
    }
  };
  channel.onclose = () => end(new ApiError(0, { message: "The connection was lost." }));
  send("speak", { response_format: "pcm", sample_rate: RATE, first_chunk_ms: 80, word_times: true, ...config });

  const stop = () => {
    // The server needs no answer to end the generation, and the user none to have silence.
    if (!isOver) {
      send("interrupt", playing() ?? {});
      state.interrupted = true;
      end();
    }
    player.cut();
    tellPlayed();
  };
  return { stop, playNow: () => player.playNow(), playback: player, generated, done };
}

// Finds words, which come in order, in the text they are of: the characters of each. White space may differ.
export class WordFinder {
  #text;
  #at = 0;

  constructor(text) {
    this.#text = text;
  }

  find(word) {
    const letters = [...word].filter((letter) => !/\s/u.test(letter));
    let at = this.#at;
    while (at < this.#text.length && /\s/u.test(this.#text[at])) at += 1;
    const start = at;
    for (const letter of letters) {
      while (at < this.#text.length && /\s/u.test(this.#text[at])) at += 1;
      if (!this.#text.startsWith(letter, at)) return null;
      at += letter.length;
    }
    this.#at = at;
    return { start, end: at };
  }
}
