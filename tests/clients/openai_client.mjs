// Talks to a running server with the real `openai` package for Node.js, as an application does.
//
// usage: openai_client.mjs BASE_URL RECORDING ASR_MODEL WORD TRANSLATOR CLONER
//
// ASR_MODEL, the default, transcribes RECORDING to a text with WORD in it. TRANSLATOR is a model that translates, CLONER one
// that clones voices. Exits with a stack trace at the first deviation from the API; prints one line for each check that
// passed.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { connect } from "node:net";

// The packages are below `target/`, where Node.js does not look for them.
const require = createRequire(new URL("../../target/node/package.json", import.meta.url));
const { default: OpenAI, toFile } = require("openai");
const { OpenAIRealtimeWS } = require("openai/realtime/ws");

const TEXT = "The server speaks through the same package.";
const [baseUrl, recording, asrModel, word, translator, cloner] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey: "unused", maxRetries: 0, timeout: 120_000 });
const audio = await readFile(recording);
const file = () => toFile(audio, "recording.wav");

function passed(what) {
  console.log(`passed: ${what}`);
}

async function refused(kind, status, param, word, call) {
  await assert.rejects(call, (error) => {
    assert(error instanceof kind, `${error}`);
    assert.equal(error.status, status);
    assert.equal(error.param, param, error.message);
    assert(error.message.includes(word), error.message);
    assert(error.code && error.requestID.startsWith("req-"), `${error.code} ${error.requestID}`);
    return true;
  });
}

const speak = (extra, options) =>
  client.audio.speech.create(
    { model: "gpt-4o-mini-tts-2025-12-15", voice: "marin", input: TEXT, response_format: "pcm", ...extra },
    options,
  );

async function speech() {
  const whole = await speak({ seed: 1 });
  assert.equal(whole.headers.get("content-type"), "audio/pcm");
  const pcm = Buffer.from(await whole.arrayBuffer());
  assert(pcm.length > 24_000, `${pcm.length}`);

  const events = [];
  const sse = await speak({ seed: 1, stream_format: "sse" });
  for (const block of (await sse.text()).split("\n\n")) {
    if (block.startsWith("data: ")) events.push(JSON.parse(block.slice(6)));
  }
  const done = events.pop();
  assert.equal(done.type, "speech.audio.done");
  assert.equal(done.usage.total_tokens, done.usage.input_tokens + done.usage.output_tokens);
  assert(events.every((event) => event.type === "speech.audio.delta"));
  assert(pcm.equals(Buffer.concat(events.map((event) => Buffer.from(event.audio, "base64")))));
  passed("speech whole and as events");

  const plain = await speak({ input: "All can be said." });
  assert.equal(plain.headers.get("x-unspoken-characters"), null);
  assert.equal(plain.headers.get("x-ignored-fields"), null);
  await plain.arrayBuffer();
  const told = await speak({ input: "Hello 漢字.", user: "somebody", metadata: { a: 1 } });
  assert.equal(decodeURIComponent(told.headers.get("x-unspoken-characters")), "漢字");
  assert.equal(told.headers.get("x-ignored-fields"), "metadata, user");
  await told.arrayBuffer();
  passed("what is ignored and what is not said is told");
}

async function aborts() {
  const page = await (await fetch(`${baseUrl}/metrics`)).text();
  const counts = page.split("\n").filter((line) => line.startsWith("izwi_aborts_total"));
  return counts.reduce((sum, line) => sum + Number(line.split(" ").pop()), 0);
}

async function cancelling() {
  const before = await aborts();
  const controller = new AbortController();
  const response = await speak({ input: `${TEXT} `.repeat(90).trim() }, { signal: controller.signal });
  const reader = response.body.getReader();
  const { value } = await reader.read();
  assert(value.length > 0);
  controller.abort();
  await assert.rejects(async () => {
    while (!(await reader.read()).done);
  });
  while ((await aborts()) === before) await new Promise((resolve) => setTimeout(resolve, 50));
  await (await speak({})).arrayBuffer();
  passed("speech is cancelled midway");
}

async function transcriptions() {
  const create = async (extra, options) =>
    client.audio.transcriptions.create({ model: "whisper-1", file: await file(), ...extra }, options);
  const plain = await create({});
  assert(plain.text.toLowerCase().includes(word), plain.text);
  assert.equal(plain.usage.type, "duration");
  assert(plain.usage.seconds > 0 && !("logprobs" in plain) && !("languages" in plain));
  const billed = await create({ model: "gpt-4o-mini-transcribe-2025-12-15" });
  assert.equal(billed.usage.type, "tokens");
  assert(billed.usage.output_tokens > 0);
  assert.equal(billed.usage.total_tokens, billed.usage.input_tokens + billed.usage.output_tokens);
  const detected = await create({ model: "gpt-transcribe", languages: ["en"], keywords: ["country", "Americans"] });
  assert.deepEqual(detected.languages, [{ code: "en" }]);
  assert(detected.text.toLowerCase().includes(word), detected.text);
  passed("transcription as json, with usage and languages");

  for (const form of ["text", "srt", "vtt"]) {
    const text = await create({ response_format: form });
    assert.equal(typeof text, "string");
    assert(text.toLowerCase().includes(word), text);
  }
  const verbose = await create({
    response_format: "verbose_json",
    timestamp_granularities: ["word", "segment"],
    language: "en",
    prompt: "A recording.",
    temperature: 0,
  });
  assert.equal(verbose.language, "english");
  assert(verbose.words.some((item) => item.word.toLowerCase().includes(word)));
  passed("transcription in every form");

  const likely = await create({ model: "gpt-4o-transcribe", include: ["logprobs"] });
  assert(likely.logprobs.length > 5);
  assert(likely.logprobs.every((token) => token.logprob <= 0 && token.bytes.length > 0));
  const bytes = Buffer.from(likely.logprobs.flatMap((token) => token.bytes));
  assert.equal(bytes.toString("utf8").trim(), likely.text);
  passed("transcription with log-probabilities");

  const vad = { type: "server_vad", threshold: 0.4, prefix_padding_ms: 200, silence_duration_ms: 600 };
  for (const chunking_strategy of ["auto", vad]) {
    const text = (await create({ chunking_strategy })).text;
    assert(text.toLowerCase().includes(word), text);
  }
  passed("transcription with a chunking strategy");

  const stream = await create({ model: "gpt-4o-mini-transcribe", stream: true, include: ["logprobs"] });
  const events = [];
  for await (const event of stream) events.push(event);
  const done = events.pop();
  assert.equal(done.type, "transcript.text.done");
  assert(events.length > 0 && events.every((event) => event.type === "transcript.text.delta"));
  assert.equal(events.map((event) => event.delta).join(""), done.text);
  assert.deepEqual(events.flatMap((event) => event.logprobs), done.logprobs);
  // A stream is not searched, and its numbers are rounded otherwise.
  assert.deepEqual(done.logprobs.map(({ token }) => token), likely.logprobs.map(({ token }) => token));
  for (const [at, { logprob }] of done.logprobs.entries()) {
    assert(Math.abs(logprob - likely.logprobs[at].logprob) < 1e-3, `token ${at}: ${logprob}`);
  }
  assert.equal(done.usage.type, "tokens");
  passed("transcription as a stream");
}

async function translations() {
  const create = async (extra) =>
    client.audio.translations.create({ model: translator, file: await file(), ...extra });
  const { text } = await create({});
  assert(text);
  const verbose = await create({ response_format: "verbose_json" });
  assert.equal(verbose.text, text);
  const stream = await create({ stream: true });
  const events = (await new Response(stream).text()).split("\n\n").filter((block) => block.startsWith("data: "));
  const done = JSON.parse(events.pop().slice(6));
  assert.deepEqual([done.type, done.text], ["transcript.text.done", text]);
  assert(events.length > 0);
  passed("translation, whole and as a stream");
}

async function voices() {
  const created = await client.audio.voices.create({
    name: "node-voice",
    consent: "cons_1234",
    audio_sample: await file(),
    model: cloner,
  });
  assert.deepEqual([created.object, created.type, created.id], ["audio.voice", "audio_sample", "node-voice"]);
  assert.equal(created.created_at, Date.parse("2026-01-01T00:00:00Z") / 1000);
  const spoken = await speak({ model: cloner, voice: { id: created.id } });
  assert((await spoken.arrayBuffer()).byteLength > 0);
  const removed = await client.audio.voices.delete(created.id);
  assert.deepEqual(removed, { id: created.id, object: "audio.voice.deleted", deleted: true });
  await refused(OpenAI.NotFoundError, 404, "voice", "node-voice", () => client.audio.voices.delete(created.id));
  passed("voices are created, used and deleted");
}

async function models() {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  assert(ids.includes(asrModel), `${ids}`);
  assert.equal((await client.models.retrieve(asrModel)).object, "model");
  passed("models");
}

async function errors() {
  const { BadRequestError, NotFoundError } = OpenAI;
  const listen = async (extra) => client.audio.transcriptions.create({ model: asrModel, file: await file(), ...extra });
  await refused(NotFoundError, 404, "model", "no-such-model", () => listen({ model: "no-such-model" }));
  await refused(BadRequestError, 400, "speed", "speed", () => speak({ speed: "fast" }));
  await refused(BadRequestError, 400, "temperature", "a number", () => listen({ temperature: "hot" }));
  await refused(BadRequestError, 400, "language", "use one of en", () => listen({ language: "de" }));
  await refused(BadRequestError, 400, "language", "use one of en", () => speak({ language: "de" }));
  await refused(BadRequestError, 400, "include", "logprobs", () => listen({ include: ["everything"] }));
  await refused(BadRequestError, 400, "response_format", "speakers", () => listen({ response_format: "diarized_json" }));
  await refused(BadRequestError, 400, "known_speaker_names", "speakers", () =>
    listen({ known_speaker_names: ["agent"], known_speaker_references: ["data:audio/wav;base64,AAAA"] }),
  );
  await refused(BadRequestError, 400, "chunking_strategy.threshold", "between 0 and 1", () =>
    listen({ chunking_strategy: { type: "server_vad", threshold: 2 } }),
  );
  await refused(BadRequestError, 400, "type", "recordings only", () =>
    client.audio.voices.create({ name: "x", type: "prompt", prompt: "A calm voice." }),
  );
  passed("errors map to the package's exceptions");
}

// The package asks for TLS, which a proxy before the server would end; here its connection is plain.
async function realtime() {
  const { hostname, port } = new URL(baseUrl);
  const options = { createConnection: () => connect(Number(port), hostname) };
  const session = new OpenAIRealtimeWS({ intent: "transcription", options }, client);
  const transcript = new Promise((resolve, reject) => {
    session.on("error", reject);
    session.on("conversation.item.input_audio_transcription.completed", (event) => resolve(event.transcript));
  });
  await new Promise((resolve) => session.on("session.created", resolve));
  const data = audio.indexOf("data") + 8;
  const input = { format: { type: "audio/pcm", rate: audio.readUInt32LE(24) }, turn_detection: null };
  session.send({ type: "session.update", session: { type: "transcription", audio: { input } } });
  for (let at = data; at < audio.length; at += 32_000) {
    const piece = audio.subarray(at, at + 32_000).toString("base64");
    session.send({ type: "input_audio_buffer.append", audio: piece });
  }
  session.send({ type: "input_audio_buffer.commit" });
  const text = await transcript;
  assert(text.toLowerCase().includes(word), text);

  const failure = new Promise((resolve) => session.on("error", resolve));
  session.send({ type: "input_audio_buffer.append", audio: "%", event_id: "mine" });
  assert.equal((await failure).error.event_id, "mine");
  session.close();
  passed("a realtime transcription and an error");
}

await speech();
await cancelling();
await transcriptions();
await translations();
await voices();
await models();
await realtime();
await errors();
