// Files of speech that was generated once. WAV and subtitles are made here; the server encodes the other formats of what
// this page sends it.

import { request } from "./api.js";
import { cues, srt, vtt } from "./captions.js";
import { RATE, wav } from "./player.js";

export const OFFERS = [
  { value: "wav", label: "WAV", extension: "wav" },
  { value: "mp3", label: "MP3", extension: "mp3" },
  { value: "opus", label: "Opus", extension: "opus" },
  { value: "flac", label: "FLAC", extension: "flac" },
  { value: "pcm", label: "PCM, 16 bits", extension: "pcm" },
  { value: "ulaw", label: "μ-law, 8 kHz", extension: "ulaw" },
  { value: "alaw", label: "A-law, 8 kHz", extension: "alaw" },
  { value: "srt", label: "Subtitles, SRT", extension: "srt" },
  { value: "vtt", label: "Subtitles, WebVTT", extension: "vtt" },
];

export const offer = (format) => OFFERS.find(({ value }) => value === format);

// A file in a format, of samples at the page's rate and words, each {text, startMs, endMs}.
export async function encode(format, pieces, words) {
  if (format === "srt" || format === "vtt") {
    if (!words.length) throw new Error("The model did not tell when its words are spoken: there are no subtitles.");
    const segments = cues(words.map(({ text, startMs, endMs }) => ({ text, start: startMs / 1000, end: endMs / 1000 })));
    return new Blob([format === "srt" ? srt(segments) : vtt(segments)], { type: format === "srt" ? "application/x-subrip" : "text/vtt" });
  }
  const file = wav(pieces, RATE);
  if (format === "wav") return file;
  const form = new FormData();
  form.append("file", file, "speech.wav");
  form.append("response_format", format);
  return (await request("/v1/audio/encodings", { method: "POST", body: form })).blob();
}
