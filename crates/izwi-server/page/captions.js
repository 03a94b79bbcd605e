// Subtitles of segments, each {start, end, text} in seconds. SRT: https://www.loc.gov/preservation/digital/formats/fdd/fdd000569.shtml
// WebVTT: https://www.w3.org/TR/webvtt1/

const LONGEST_S = 7;
const LONGEST_CHARS = 84;

function time(seconds, point) {
  const all = Math.round(seconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(all / 3_600_000), Math.floor(all / 60_000) % 60];
  return `${two(hours)}:${two(minutes)}:${two(Math.floor(all / 1000) % 60)}${point}${String(all % 1000).padStart(3, "0")}`;
}

export const srt = (segments) =>
  segments.map(({ start, end, text }, at) => `${at + 1}\n${time(start, ",")} --> ${time(end, ",")}\n${text.trim()}\n\n`).join("");

// `-->` and markup have a meaning in WebVTT.
const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

export const vtt = (segments) =>
  `WEBVTT\n\n${segments.map(({ start, end, text }) => `${time(start, ".")} --> ${time(end, ".")}\n${escaped(text.trim())}\n\n`).join("")}`;

// Cuts words with times, each {text, start, end}, into segments that can be read.
export function cues(words) {
  const found = [];
  for (const { text, start, end } of words) {
    const last = found.at(-1);
    if (last && end - last.start <= LONGEST_S && last.text.length + text.length < LONGEST_CHARS) {
      last.text += ` ${text}`;
      last.end = end;
    } else found.push({ start, end, text });
  }
  return found;
}
