// Texts and subtitles of a transcript, a script: {name, model, language, duration, speakers, segments}. A segment is {start, end,
// words, speaker} in seconds, a word {text, gap, start, end}: `gap` is what stands before it, `start` is null where its time is
// not known. `speakers` has the name of each speaker. SRT: https://www.loc.gov/preservation/digital/formats/fdd/fdd000569.shtml
// WebVTT: https://www.w3.org/TR/webvtt1/

import { WordFinder } from "./speech.js";

const LONGEST_S = 7;
const LONGEST_CHARS = 84;

// The words of a text with the times of `timed`, each {word, start, end}: the text is kept as it is written.
export function wordsOf(text, timed = []) {
  const finder = new WordFinder(text);
  const found = [];
  let from = 0;
  const unit = (word, start, end, at) => found.push({ gap: text.slice(from, at), text: word, start, end });
  for (const { word, start, end } of timed) {
    const place = finder.find(word.trim());
    if (!place) {
      // Words that are not in the text stand for it.
      return timed.map((each, at) => ({ gap: at ? " " : "", text: each.word.trim(), start: each.start, end: each.end }));
    }
    unit(text.slice(place.start, place.end), start, end, place.start);
    from = place.end;
  }
  // What no time is known of, word by word.
  for (const match of text.slice(from).matchAll(/\S+/g)) found.push({ gap: found.length ? " " : "", text: match[0], start: null, end: null });
  return found;
}

// The text of a segment, as it is after corrections.
export const textOf = ({ words }) => words.filter(({ text }) => text).map(({ gap, text }) => gap + text).join("").trim();

const spoken = ({ segments }) => segments.map((segment) => ({ ...segment, text: textOf(segment) })).filter(({ text }) => text);
const nameOf = (script, segment) => (segment.speaker === undefined ? "" : (script.speakers?.[segment.speaker] ?? segment.speaker));

function time(seconds, point) {
  const all = Math.round(seconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(all / 3_600_000), Math.floor(all / 60_000) % 60];
  return `${two(hours)}:${two(minutes)}:${two(Math.floor(all / 1000) % 60)}${point}${String(all % 1000).padStart(3, "0")}`;
}

// A blank line would end a subtitle, and an arrow would begin one.
const line = (text) => text.split(/\s+/).join(" ").trim().replaceAll("-->", "->");

export const srt = (segments) =>
  segments.map(({ start, end, text }, at) => `${at + 1}\n${time(start, ",")} --> ${time(end, ",")}\n${line(text)}\n\n`).join("");

// `-->` and markup have a meaning in WebVTT.
const escaped = (text) => line(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

export const vtt = (segments) =>
  `WEBVTT\n\n${segments.map(({ start, end, text, name }) => `${time(start, ".")} --> ${time(end, ".")}\n${name ? `<v ${escaped(name)}>` : ""}${escaped(text)}\n\n`).join("")}`;

// Turns of one speaker each: their segments, joined.
function turns(script) {
  const found = [];
  for (const segment of spoken(script)) {
    const [name, last] = [nameOf(script, segment), found.at(-1)];
    if (last && last.name === name && name) last.text += ` ${segment.text}`;
    else found.push({ name, start: segment.start, text: segment.text });
  }
  return found;
}

// Signs that Markdown would take for its own.
const plain = (text) => text.replace(/([\\`*_{}[\]<>#|~])/g, "\\$1");

export function json({ name, model, language, duration, speakers, segments }) {
  const shown = segments.map((segment) => ({
    start: segment.start,
    end: segment.end,
    ...(segment.speaker !== undefined && { speaker: speakers?.[segment.speaker] ?? segment.speaker }),
    text: textOf(segment),
    words: segment.words.filter(({ text, start }) => text && start !== null).map(({ text, start, end }) => ({ word: text, start, end })),
  }));
  const text = shown.map((segment) => segment.text).filter(Boolean).join(" ");
  return `${JSON.stringify({ name, model, language, duration, text, segments: shown }, null, 2)}\n`;
}

// Every form in which a script is saved.
export const FORMS = [
  { label: "TXT", extension: "txt", type: "text/plain", write: (script) => `${turns(script).map(({ name, text }) => (name ? `${name}: ${text}` : text)).join("\n")}\n` },
  { label: "JSON", extension: "json", type: "application/json", write: json },
  { label: "SRT", extension: "srt", type: "application/x-subrip", write: (script) => srt(spoken(script).map((segment) => ({ ...segment, text: [nameOf(script, segment), segment.text].filter(Boolean).join(": ") }))) },
  { label: "VTT", extension: "vtt", type: "text/vtt", write: (script) => vtt(spoken(script).map((segment) => ({ ...segment, name: nameOf(script, segment) }))) },
  {
    label: "Markdown",
    extension: "md",
    type: "text/markdown",
    write: (script) => `# ${plain(script.name)}\n\n${turns(script).map(({ name, start, text }) => `**${time(start, ".").slice(0, 8)}${name ? ` ${plain(name)}` : ""}** ${plain(text)}\n\n`).join("")}`,
  },
];

// Cuts words with times into segments that can be read.
export function cues(words) {
  const found = [];
  for (const word of words) {
    const { text, start, end } = word;
    const last = found.at(-1);
    if (last && end - last.start <= LONGEST_S && last.text.length + text.length < LONGEST_CHARS) {
      last.text += ` ${text}`;
      last.end = end;
      last.words.push(word);
    } else found.push({ start, end, text, words: [word] });
  }
  return found;
}
