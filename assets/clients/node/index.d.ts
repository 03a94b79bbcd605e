// Options and results have the names of the HTTP API and of docs/protocol.md.

export interface ClientOptions {
  /** Address of the server; by default the origin of the page, or http://127.0.0.1:8080. */
  baseUrl?: string;
  apiKey?: string;
  /** A WebSocket class for runtimes without one, such as that of the package ws. */
  WebSocket?: unknown;
}

/** Options of speech; what is left out has the model's own value. */
export interface SpeechOptions {
  model?: string;
  voice?: string;
  language?: string;
  instructions?: string;
  speed?: number;
  seed?: number;
  temperature?: number;
  top_p?: number;
  top_k?: number;
  repetition_penalty?: number;
  max_tokens?: number;
  priority?: "low" | "normal" | "high";
  sample_rate?: number;
  bit_rate?: number;
  first_chunk_ms?: number;
  /** A recording of the voice to clone: its bytes, base64, or a `data:` URL. */
  ref_audio?: ArrayBuffer | Uint8Array | string;
  ref_text?: string;
  x_vector_only_mode?: boolean;
  signal?: AbortSignal;
}

export interface SpeakOptions extends SpeechOptions {
  /** `wav` by default. */
  response_format?: "mp3" | "opus" | "flac" | "wav" | "pcm" | "ulaw" | "alaw";
}

export interface StreamOptions extends SpeechOptions {
  /** `pcm` by default: 16-bit little-endian samples. */
  response_format?: "pcm" | "pcm_f32" | "wav" | "mp3" | "opus" | "flac" | "ulaw" | "alaw";
  /** 20 to 2000, by default 200. */
  chunk_ms?: number;
}

export interface Chunk {
  type: "audio.chunk";
  utterance: number;
  seq: number;
  sample_offset: number;
  samples: number;
  is_final: boolean;
  sample_rate: number;
  data: Uint8Array;
}

export interface Utterance {
  utterance: number;
  samples: number;
  duration_s: number;
  rtf: number;
  ttfa_ms: number | null;
  finish_reason: string;
}

export interface Interrupted {
  utterance: number | null;
  played_ms: number;
  text_spoken: string;
  text_remaining: string;
  approximate: boolean;
}

export interface TranscriptionOptions {
  model?: string;
  language?: string;
  prompt?: string;
  keywords?: string[];
  languages?: string[];
  temperature?: number;
  beam_size?: number;
  seed?: number;
  priority?: "low" | "normal" | "high";
  signal?: AbortSignal;
}

export interface Transcript {
  task: "transcribe" | "translate";
  text: string;
  language: string;
  duration: number;
  segments: { id: number; start: number; end: number; text: string; avg_logprob: number; no_speech_prob: number }[];
  words?: { word: string; start: number; end: number }[];
}

export interface LiveOptions {
  model?: string;
  language?: string;
  prompt?: string;
  encoding?: "pcm_s16le" | "mulaw" | "alaw";
  sample_rate?: number;
  latency_ms?: number;
  /** Whether who speaks is told, or the model that tells it. */
  speakers?: boolean | string;
  word_times?: boolean;
  threshold?: number;
  prefix_padding_ms?: number;
  silence_duration_ms?: number;
  priority?: "low" | "normal" | "high";
  signal?: AbortSignal;
}

export type LiveEvent =
  | { type: "speech.started"; turn: number; at_ms: number }
  | { type: "partial"; turn: number; text: string }
  | {
      type: "committed";
      turn: number;
      text: string;
      words?: { text: string; start_ms: number; end_ms: number }[];
    }
  | {
      type: "turn.speakers";
      turn: number;
      segments: { speaker: string; text: string; start_ms: number; end_ms: number }[];
    }
  | { type: "turn.end"; turn: number; text: string; language: string | null; start_ms: number; end_ms: number };

export interface Voice {
  id: string;
  name: string;
  description: string;
  owned_by: string;
  default: boolean;
  models: string[];
  model?: string | null;
  language?: string | null;
}

export interface Model {
  id: string;
  state: string;
  tasks: ("tts" | "asr" | "chat")[];
  default: boolean;
  languages: string[];
  sample_rate?: number | null;
  clones_voices?: boolean | null;
  translates?: boolean | null;
}

export type Source<T> = Iterable<T> | AsyncIterable<T>;
export type Recording = Blob | ArrayBuffer | Uint8Array;

export class Client {
  constructor(options?: ClientOptions);
  readonly baseUrl: string;
  /** The whole audio of a text. */
  speak(text: string, options?: SpeakOptions): Promise<Uint8Array>;
  /** Chunks of audio while it is generated. `text` may come in pieces, as a language model writes it. */
  stream(text: string | Source<string>, options?: StreamOptions): SpeechStream;
  /** The transcript of a recording with its segments, and with its words where `word_times` is set. */
  transcribe(audio: Recording, options?: TranscriptionOptions & { word_times?: boolean }): Promise<Transcript>;
  /** The text of a recording as subtitles. */
  subtitles(audio: Recording, options?: TranscriptionOptions & { response_format?: "srt" | "vtt" }): Promise<string>;
  /** Text while it is spoken: `audio` gives mono PCM of 16 bits as it is recorded, and its end ends the session. */
  transcribeLive(
    audio: Source<ArrayBuffer | Uint8Array>,
    options?: LiveOptions,
  ): AsyncGenerator<LiveEvent, void, undefined>;
  /** Voices of a loaded model, or of all of them, and saved voices. */
  voices(model?: string): Promise<Voice[]>;
  models(): Promise<Model[]>;
}

/**
 * Iterates over the chunks of a speech session; leaving the loop closes the session. Each chunk that is handed out reports
 * playback to the server by the clock, unless the player calls `played`.
 */
export class SpeechStream implements AsyncIterableIterator<Chunk> {
  private constructor();
  /** The utterances that ended. */
  readonly utterances: Utterance[];
  /** Of the chunks, in Hz; 0 before the first one. */
  readonly sampleRate: number;
  [Symbol.asyncIterator](): this;
  next(): Promise<IteratorResult<Chunk, undefined>>;
  return(): Promise<IteratorResult<Chunk, undefined>>;
  /**
   * Reports how much of the utterance of the last chunk was played, in place of the clock, and the silence that was heard in it
   * because audio was missing.
   */
  played(playedMs: number, gapMs?: number): Promise<void>;
  /** Ends the speech, and tells what was heard of it. Without `playedMs` the last report decides. */
  interrupt(playedMs?: number): Promise<Interrupted>;
  close(): Promise<void>;
}

/** The server refused a request or could not be reached. */
export class IzwiError extends Error {
  constructor(
    message: string,
    details?: {
      code?: string;
      param?: string;
      status?: number;
      retryAfter?: number;
      requestId?: string;
      cause?: unknown;
    },
  );
  code?: string;
  /** The field that the error is about. */
  param?: string;
  /** The HTTP status; undefined on a WebSocket. */
  status?: number;
  /** Seconds after which the same may succeed. */
  retryAfter?: number;
  requestId?: string;
}
