// Calls the speech functions of the real AI SDK (`ai` and its providers) against a running server.
//
// usage: ai_client.mjs BASE_URL FIRST
//
// The server has an English TTS model and an ASR model. FIRST is a WAV file of someone who says "He was not an ill-disposed
// young man". Exits with a stack trace at the first deviation; prints one line for each check that passed.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";

// The packages are below `target/`, where Node.js does not look for them.
const packages = new URL("../../../target/node/node_modules/", import.meta.url);
const load = (name) => import(new URL(`${name}/dist/index.js`, packages));
const { experimental_streamTranscribe: streamTranscribe, generateSpeech, transcribe } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createElevenLabs } = await load("@ai-sdk/elevenlabs");
const { createDeepgram } = await load("@ai-sdk/deepgram");
const WebSocket = createRequire(packages)("ws");

const TEXT = "Good morning. The doctor is in the garden, and the taxi waits outside.";
const [baseUrl, recording] = process.argv.slice(2);
const audio = await readFile(recording);
const apiKey = "none";
// Two providers have no option for the address.
const here = (address, options) => fetch(String(address).replace(/^https:\/\/[^/]*/, baseUrl), options);
const openai = createOpenAI({ baseURL: `${baseUrl}/v1`, apiKey, webSocket: WebSocket });
const elevenlabs = createElevenLabs({ apiKey, fetch: here });
const deepgram = createDeepgram({ apiKey, fetch: here });

function passed(what) {
  console.log(`passed: ${what}`);
}

const words = (text) => text.toLowerCase().match(/[a-z']+/g) ?? [];

function isFirst(text) {
  assert(["not", "young man"].every((word) => text.toLowerCase().includes(word)), text);
}

async function heard(spoken) {
  const { text } = await transcribe({ model: openai.transcription("whisper-1"), audio: spoken.uint8Array });
  const found = new Set(words(text));
  const missing = words(TEXT).filter((word) => !found.has(word));
  assert(missing.length <= 3 && words(text).at(-1) === "outside", text);
}

for (const [model, voice, extra] of [
  [openai.speech("gpt-4o-mini-tts"), "alloy", { instructions: "Speak slowly.", outputFormat: "wav" }],
  [openai.speech("tts-1"), "heart", {}],
  [elevenlabs.speech("eleven_flash_v2_5"), "heart", {}],
  [deepgram.speech("aura-2-helena-en"), undefined, {}],
]) {
  const { audio: spoken } = await generateSpeech({ model, text: TEXT, voice, maxRetries: 0, ...extra });
  assert(spoken.mediaType.startsWith("audio/"), spoken.mediaType);
  await heard(spoken);
  passed(`${model.provider} speaks with ${model.modelId}`);
}

for (const model of [
  openai.transcription("gpt-4o-mini-transcribe"),
  openai.transcription("whisper-1"),
  deepgram.transcription("nova-3"),
]) {
  const { text, durationInSeconds } = await transcribe({ model, audio, maxRetries: 0 });
  isFirst(text);
  assert(durationInSeconds === undefined || Math.abs(durationInSeconds - 3) < 1, String(durationInSeconds));
  passed(`${model.provider} transcribes with ${model.modelId}`);
}

// Two seconds of silence end the turn. The samples of the recording have 16 bits and 16 kHz, behind 44 bytes.
const samples = new Int16Array(audio.buffer.slice(audio.byteOffset + 44, audio.byteOffset + audio.length & ~1));
const live = new Int16Array((samples.length * 3) / 2 + 48_000);
live.forEach((_, at) => (live[at] = samples[Math.floor((at * 2) / 3)] ?? 0));
const pieces = Array.from({ length: Math.ceil(live.length / 2400) }, (_, at) => live.slice(at * 2400, (at + 1) * 2400));
const microphone = new ReadableStream({
  pull(controller) {
    const piece = pieces.shift();
    piece ? controller.enqueue(new Uint8Array(piece.buffer)) : controller.close();
  },
});
const streamed = streamTranscribe({
  model: openai.transcription("gpt-realtime-whisper"),
  audio: microphone,
  inputAudioFormat: { type: "audio/pcm", rate: 24_000 },
});
isFirst(await streamed.text);
passed("a stream is transcribed");

const givenUp = async () => {
  const page = await (await fetch(`${baseUrl}/metrics`)).text();
  return [...page.matchAll(/^izwi_aborts_total\{.*\} (\d+)$/gm)].reduce((sum, [, count]) => sum + Number(count), 0);
};
const before = await givenUp();
const abort = new AbortController();
const book = `${TEXT} `.repeat(50);
const long = generateSpeech({ model: openai.speech("tts-1"), text: book, abortSignal: abort.signal, maxRetries: 0 });
setTimeout(() => abort.abort(), 200);
await assert.rejects(long, { name: "AbortError" });
const isIdle = async () => (await (await fetch(`${baseUrl}/health`)).json()).requests_open === 0;
for (let tries = 0; (await givenUp()) === before && !(await isIdle()); tries += 1) {
  assert(tries < 2_000, "the server does not give up");
  await new Promise((resolve) => setTimeout(resolve, 20));
}
passed("an answer is interrupted");

for (const call of [
  () => generateSpeech({ model: openai.speech("nobody"), text: "Hi.", maxRetries: 0 }),
  () => generateSpeech({ model: elevenlabs.speech("nobody"), text: "Hi.", maxRetries: 0 }),
  () => generateSpeech({ model: deepgram.speech("nobody"), text: "Hi.", maxRetries: 0 }),
  () => transcribe({ model: openai.transcription("nobody"), audio, maxRetries: 0 }),
  () => transcribe({ model: deepgram.transcription("nobody"), audio, maxRetries: 0 }),
]) {
  await assert.rejects(call, (error) => `${error.message} ${error.responseBody}`.includes("model 'nobody' is unknown"));
}
passed("an unknown model is reported");
