// The page Listen: live transcripts of the microphone, and of files.

import { ApiError, request, socket } from "./api.js";
import { capture } from "./capture.js";
import { cues, srt, vtt } from "./captions.js";
import { $, choices, make, save, say, sayError, seconds } from "./dom.js";
import { toPcm, wav } from "./player.js";
import { models, state, tellMissing } from "./service.js";
import { Waveform } from "./waveform.js";

let wave;
let live = null;

function refresh() {
  const listening = models("asr");
  choices(
    $("listen-model"),
    listening.map(({ id, default: selected }) => ({ value: id, label: id, selected })),
    "no model",
  );
  tellMissing($("listen-notice"), "listens", listening.length > 0, ({ tasks }) => tasks.includes("asr"));
  $("listen-record").disabled = !live && !listening.length;
  $("listen-files").disabled = !listening.length;
}

// The result of one recording: its text with times, and what can be saved of it.
class Transcript {
  words = [];
  segments = [];
  #spans = [];

  constructor(name) {
    this.name = name;
    this.text = make("p", { class: "words", tabindex: "0", "aria-label": `Transcript of ${name}`, role: "log", "aria-live": "polite" });
    this.audio = make("audio", { controls: true, "aria-label": `Recording ${name}` });
    this.status = make("p", { class: "status", role: "status" });
    const button = (label, click) => make("button", { type: "button", class: "slim", disabled: true, onclick: click }, label);
    const base = name.replace(/\.[a-z0-9]+$/i, "");
    this.buttons = [
      button("Copy", () => this.#copy()),
      button("SRT", () => save(new Blob([srt(this.segments)], { type: "application/x-subrip" }), `${base}.srt`)),
      button("VTT", () => save(new Blob([vtt(this.segments)], { type: "text/vtt" }), `${base}.vtt`)),
    ];
    const title = make("h2", {}, name);
    this.element = make("article", { class: "card result" }, title, this.text, this.audio, make("div", { class: "actions" }, ...this.buttons, this.status));
    this.audio.addEventListener("timeupdate", () => this.#light());
    this.audio.addEventListener("seeked", () => this.#light());
    this.text.addEventListener("click", ({ target }) => {
      if (target.dataset.start === undefined || !this.audio.src) return;
      this.audio.currentTime = Number(target.dataset.start);
      this.audio.play();
    });
    $("listen-results").prepend(this.element);
  }

  // Appends words, each {text, start, end} in seconds; `start` is null where the times are not known.
  addWords(words) {
    for (const word of words) {
      const times = word.start !== null && { "data-start": word.start, "data-end": word.end, title: seconds(word.start) };
      const span = make("span", times || {}, word.text);
      if (times) this.#spans.push(span);
      const partial = this.text.querySelector(".partial");
      const gap = this.text.firstChild && this.text.firstChild !== partial ? " " : "";
      const nodes = gap ? [gap, span] : [span];
      if (partial) partial.before(...nodes);
      else this.text.append(...nodes);
      this.words.push(word);
    }
    this.text.scrollTop = this.text.scrollHeight;
  }

  addText(text) {
    this.text.append(text);
  }

  set partial(text) {
    let span = this.text.querySelector(".partial");
    if (!text) return void span?.remove();
    if (!span) this.text.append((span = make("span", { class: "partial", "aria-hidden": "true" })));
    say(span, this.words.length ? text : text.trimStart());
    this.text.scrollTop = this.text.scrollHeight;
  }

  set recording(blob) {
    this.audio.src = URL.createObjectURL(blob);
  }

  done(message) {
    this.partial = "";
    this.buttons.forEach((each) => (each.disabled = !this.text.textContent.trim()));
    say(this.status, message);
  }

  #light() {
    const now = this.audio.currentTime;
    for (const span of this.#spans) {
      const isNow = now > 0 && now >= Number(span.dataset.start) && now < Number(span.dataset.end);
      span.classList.toggle("now", isNow);
    }
  }

  async #copy() {
    try {
      await navigator.clipboard.writeText(this.text.textContent.trim());
      say(this.status, "Copied");
    } catch {
      say(this.status, "The browser allows no copy; select the text instead.", "error");
    }
  }
}

async function transcribeFile(file) {
  const transcript = new Transcript(file.name);
  transcript.recording = file;
  say(transcript.status, "Transcribing");
  const form = new FormData();
  form.append("file", file, file.name);
  form.append("model", $("listen-model").value);
  form.append("response_format", "verbose_json");
  form.append("timestamp_granularities[]", "word");
  form.append("timestamp_granularities[]", "segment");
  if ($("listen-language").value.trim()) form.append("language", $("listen-language").value.trim());
  const begun = performance.now();
  try {
    const answer = await (await request("/v1/audio/transcriptions", { method: "POST", body: form })).json();
    const words = (answer.words ?? []).map(({ word, start, end }) => ({ text: word.trim(), start, end }));
    if (words.length) transcript.addWords(words);
    else transcript.addText(answer.text.trim());
    transcript.segments = answer.segments ?? [];
    const took = (performance.now() - begun) / 1000;
    const language = answer.language ? `, ${answer.language}` : "";
    transcript.done(answer.text.trim() ? `${seconds(answer.duration)} in ${seconds(took)}${language}` : "No speech was found.");
  } catch (error) {
    sayError(transcript.status, error);
  }
}

// One after the other: the server batches what several clients send.
async function transcribeFiles(files) {
  for (const file of files) await transcribeFile(file);
}

async function record() {
  const button = $("listen-record");
  const pieces = [];
  let transcript = null;
  let channel;
  let isStopping = false;
  let turnWords = [];
  const early = [];
  button.disabled = true;
  say($("listen-status"), "Opening the microphone");
  const end = async (message, kind) => {
    if (!live) return;
    const recorder = live;
    live = null;
    await recorder.stop();
    channel?.close();
    if (transcript) {
      transcript.recording = wav(pieces, recorder.rate);
      transcript.done("");
    }
    say($("listen-status"), message, kind);
    button.setAttribute("aria-pressed", "false");
    button.textContent = "Record";
    refresh();
  };
  try {
    const recorder = await capture((samples) => {
      if (isStopping) return;
      pieces.push(samples);
      wave.push(samples);
      if (channel?.readyState === WebSocket.OPEN) channel.send(toPcm(samples));
      else early.push(samples);
    });
    live = recorder;
    wave.reset(recorder.rate);
    const opened = await socket("/v1/audio/transcriptions/stream");
    const config = { model: $("listen-model").value, sample_rate: recorder.rate, word_times: true };
    if ($("listen-language").value.trim()) config.language = $("listen-language").value.trim();
    opened.send(JSON.stringify({ type: "session.config", ...config }));
    early.splice(0).forEach((samples) => opened.send(toPcm(samples)));
    channel = opened;
  } catch (error) {
    await live?.stop();
    live = null;
    refresh();
    return sayError($("listen-status"), error);
  }
  transcript = new Transcript(`Recording ${new Date().toLocaleTimeString()}`);
  channel.onmessage = ({ data }) => {
    const event = JSON.parse(data);
    if (event.type === "speech.started") say($("listen-status"), "Listening");
    else if (event.type === "partial") transcript.partial = event.text;
    else if (event.type === "committed") {
      const words = (event.words ?? []).map((word) => ({ text: word.text, start: word.start_ms / 1000, end: word.end_ms / 1000 }));
      // A text whose words could not be found in the audio.
      if (!words.length && event.text.trim()) words.push({ text: event.text.trim(), start: null });
      turnWords.push(...words);
      transcript.addWords(words);
    } else if (event.type === "turn.end") {
      transcript.partial = "";
      const [start, end] = [event.start_ms / 1000, event.end_ms / 1000];
      if (turnWords.some((word) => word.start === null)) transcript.segments.push({ start, end, text: event.text });
      else transcript.segments.push(...cues(turnWords));
      turnWords = [];
    } else if (event.type === "error") {
      end(event.message, "error");
    } else if (event.type === "session.done") end("Done");
  };
  channel.onclose = () => end(new ApiError(0, { message: "The connection was lost." }).message, "error");
  button.disabled = false;
  button.setAttribute("aria-pressed", "true");
  button.textContent = "Stop";
  say($("listen-status"), "Listening: speak now");
  live.finish = () => {
    if (isStopping) return;
    isStopping = true;
    say($("listen-status"), "Finishing");
    channel.send(JSON.stringify({ type: "input.done" }));
    live?.stop();
  };
}

export function start() {
  wave = new Waveform($("listen-wave"), { follows: true });
  $("listen-record").addEventListener("click", () => (live ? live.finish?.() : record()));
  $("listen-files").addEventListener("change", ({ target }) => {
    transcribeFiles([...target.files]);
    target.value = "";
  });
  const drop = $("listen-drop");
  const mark = (isOver) => (event) => {
    event.preventDefault();
    drop.classList.toggle("over", isOver);
  };
  drop.addEventListener("dragover", mark(true));
  drop.addEventListener("dragleave", mark(false));
  drop.addEventListener("drop", (event) => {
    mark(false)(event);
    if ($("listen-files").disabled) return;
    transcribeFiles([...event.dataTransfer.files]);
  });
  state.changed.addEventListener("change", refresh);
}
