// Uses each declaration of the client; `cargo xtask packaging` checks its types and never runs it.

import { Client, IzwiError, type Chunk, type LiveEvent, type Transcript } from "../index.js";

export async function use(audio: Blob, words: AsyncIterable<string>, microphone: Iterable<Uint8Array>): Promise<string[]> {
  const client = new Client({ baseUrl: "http://127.0.0.1:8080", apiKey: "a-long-secret-key" });
  const wav: Uint8Array = await client.speak("Hello.", { voice: "heart", response_format: "mp3", seed: 1 });
  const stream = client.stream(words, { first_chunk_ms: 80, signal: AbortSignal.timeout(1_000) });
  const chunks: Chunk[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  await stream.played(chunks.length * 200);
  const { text_spoken } = await stream.interrupt();
  const transcript: Transcript = await client.transcribe(audio, { word_times: true, keywords: ["Izwi"] });
  const subtitles: string = await client.subtitles(wav, { response_format: "vtt" });
  const texts = [text_spoken, transcript.text, subtitles];
  for await (const event of client.transcribeLive(microphone, { latency_ms: 400 })) texts.push(text(event));
  const [voice] = await client.voices("hibari");
  const [model] = await client.models();
  return [...texts, voice?.id ?? "", model?.tasks.join() ?? "", String(stream.utterances[0]?.rtf)];
}

function text(event: LiveEvent): string {
  // @ts-expect-error not every event has a text
  const always: string = event.text;
  return event.type === "speech.started" ? String(event.at_ms) : always;
}

export function remedy(error: unknown): number | undefined {
  return error instanceof IzwiError && error.code === "overloaded" ? error.retryAfter : undefined;
}

// @ts-expect-error no such format
export const refused = new Client().speak("a", { response_format: "aiff" });
