// The client against running servers: IZWI_TTS_URL, IZWI_KEYED_URL with the key IZWI_KEY, IZWI_SLASHED_URL with the key
// IZWI_SLASHED_KEY, which no subprotocol can carry, and IZWI_ASR_URL, whose model generates one word per second.
// IZWI_RECORDING is a WAV of speech, 16 kHz, mono.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";

import { Client, IzwiError } from "../index.js";

const { IZWI_TTS_URL, IZWI_KEYED_URL, IZWI_KEY, IZWI_SLASHED_URL, IZWI_SLASHED_KEY, IZWI_ASR_URL, IZWI_RECORDING } =
  process.env;
const speaker = new Client({ baseUrl: IZWI_TTS_URL });
const listener = new Client({ baseUrl: `${IZWI_ASR_URL}/` });
const recording = await readFile(IZWI_RECORDING);
const TEXT = "A first sentence is spoken here. And a second one follows it.";

async function collect(chunks) {
  const collected = [];
  for await (const chunk of chunks) collected.push(chunk);
  return collected;
}

const sum = (chunks) => chunks.reduce((total, chunk) => total + chunk.samples, 0);

test("speak gives the file of a text", async () => {
  const wav = await speaker.speak(TEXT);
  assert.equal(new TextDecoder().decode(wav.subarray(0, 4)), "RIFF");
  const pcm = await speaker.speak(TEXT, { response_format: "pcm" });
  assert.equal(pcm.length, wav.length - 44);
});

test("stream gives exact chunks, and acknowledges them", async () => {
  const stream = speaker.stream(TEXT, { chunk_ms: 100 });
  const chunks = await collect(stream);
  assert.equal(stream.sampleRate, 24_000);
  assert.ok(stream.utterances.length > 0);
  assert.deepEqual(new Set(stream.utterances.map((each) => each.finish_reason)), new Set(["stop"]));
  assert.equal(sum(chunks), sum(stream.utterances));
  for (const chunk of chunks) {
    assert.equal(chunk.data.length, 2 * chunk.samples);
    assert.equal(chunk.sample_rate, 24_000);
    if (!chunk.is_final) assert.equal(chunk.samples, 2_400);
  }
});

test("text arrives in pieces from an async iterator", async () => {
  async function* words() {
    for (const word of TEXT.split(" ")) {
      await new Promise((resolve) => setTimeout(resolve, 1));
      yield `${word} `;
    }
  }
  const whole = await collect(speaker.stream(TEXT));
  assert.equal(sum(await collect(speaker.stream(words()))), sum(whole));
});

test("an interruption tells what was heard", async () => {
  const stream = speaker.stream(TEXT.repeat(20));
  const { value: chunk } = await stream.next();
  await stream.played(50, 0);
  const { played_ms, text_spoken, text_remaining } = await stream.interrupt(100);
  assert.equal(played_ms, 100);
  assert.ok(chunk.samples > 0 && text_remaining.length > text_spoken.length);
  assert.equal((await stream.next()).done, true);
});

test("leaving the loop, an abort and a failing source end a session", async () => {
  for await (const chunk of speaker.stream(TEXT.repeat(20))) {
    assert.equal(chunk.seq, 0);
    break;
  }
  const abort = new AbortController();
  await assert.rejects(async () => {
    for await (const _ of speaker.stream(TEXT.repeat(20), { signal: abort.signal })) abort.abort(new Error("enough"));
  }, /enough/);
  function* broken() {
    yield "A sentence. ";
    throw new Error("no more words");
  }
  await assert.rejects(collect(speaker.stream(broken())), /no more words/);
});

test("transcribe takes bytes and blobs", async () => {
  const transcript = await listener.transcribe(recording, { word_times: true, language: "en" });
  assert.match(transcript.text, /word0/);
  assert.ok(transcript.duration > 0 && transcript.segments.length > 0);
  assert.ok(transcript.words.every(({ start, end }) => start <= end));
  const blob = new File([recording], "speech.wav");
  assert.equal((await listener.transcribe(blob)).text, transcript.text);
  assert.match(await listener.subtitles(recording), /-->/);
  assert.match(await listener.subtitles(recording, { response_format: "vtt" }), /^WEBVTT/);
});

test("live transcription commits the text of each turn", async () => {
  const HEADER = 44;
  function* microphone() {
    const silence = new Uint8Array(2 * 16_000);
    yield silence;
    for (let at = HEADER; at < recording.length; at += 3_200) yield recording.subarray(at, at + 3_200);
    yield silence;
  }
  const turns = new Map();
  const ended = new Map();
  for await (const event of listener.transcribeLive(microphone(), { word_times: true })) {
    if (event.type === "committed") turns.set(event.turn, (turns.get(event.turn) ?? "") + event.text);
    if (event.type === "turn.end") ended.set(event.turn, event.text);
  }
  assert.ok(ended.size > 0);
  for (const [turn, text] of ended) assert.equal((turns.get(turn) ?? "").trim(), text);
});

test("voices and models are listed", async () => {
  const [model] = await speaker.models();
  assert.ok(model.default && model.tasks.includes("tts"));
  const voices = await speaker.voices(model.id);
  assert.ok(voices.some((voice) => voice.default));
});

test("errors name the field and the remedy", async () => {
  const refused = (call, expected) =>
    assert.rejects(call, (error) => {
      assert.ok(error instanceof IzwiError, `${error}`);
      for (const [name, value] of Object.entries(expected)) assert.equal(error[name], value, `${name}: ${error}`);
      return true;
    });
  await refused(() => speaker.speak(" "), { status: 400, param: "input" });
  await refused(() => speaker.voices("nothing"), { status: 404, code: "model_not_found" });
  await refused(() => collect(speaker.stream(TEXT, { speed: 9 })), { param: "speed", code: "invalid_value" });
  await refused(() => new Client({ baseUrl: "http://127.0.0.1:1" }).models(), { code: "unreachable" });
  await refused(() => collect(new Client({ baseUrl: "http://127.0.0.1:1" }).stream("a")), { code: "unreachable" });
  await refused(() => collect(new Client({ baseUrl: IZWI_KEYED_URL }).stream("a")), { code: "invalid_api_key", status: 401 });
  assert.throws(() => new Client({ baseUrl: "ftp://a" }), /ftp:\/\/a/);
});

test("a key opens requests and sessions", async () => {
  for (const [baseUrl, apiKey] of [[IZWI_KEYED_URL, IZWI_KEY], [IZWI_SLASHED_URL, IZWI_SLASHED_KEY]]) {
    const client = new Client({ baseUrl, apiKey });
    assert.ok((await client.models()).length > 0);
    assert.ok((await collect(client.stream(TEXT))).length > 0);
  }
});

test("a runtime without a WebSocket is told the remedy", async () => {
  const client = new Client({ baseUrl: IZWI_TTS_URL, WebSocket: null });
  await assert.rejects(collect(client.stream("a")), /package ws/);
});
