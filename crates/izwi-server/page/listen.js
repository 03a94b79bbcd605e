// The page Listen: live transcripts of the microphone, and of files.

import { ApiError, events, request, socket } from "./api.js";
import { capture } from "./capture.js";
import { cues, wordsOf } from "./captions.js";
import { $, choices, say, sayError, seconds } from "./dom.js";
import { languageChoices, languageName } from "./languages.js";
import { toPcm, wav } from "./player.js";
import { remember } from "./settings.js";
import { languages, models, state, tellMissing } from "./service.js";
import { Transcript } from "./transcript.js";
import { Waveform } from "./waveform.js";

let wave;
let live = null;
// Files that wait for their turn, and whether one is transcribed.
const waiting = [];
let isBusy = false;

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
  showModel();
}

// What the chosen model can do.
function showModel() {
  const id = $("listen-model").value;
  choices($("listen-language"), languageChoices(languages(id), "Detected"));
  const model = state.models.find((each) => each.id === id);
  const known = languages(id);
  const translates = model?.translates ?? known.length !== 1;
  $("listen-task").options[1].disabled = !translates;
  if (!translates && $("listen-task").value === "translate") $("listen-task").value = "transcribe";
  const diarizes = models("diarize").length > 0;
  $("listen-speakers").disabled = !diarizes || $("listen-task").value === "translate";
  say($("listen-speakers-why"), diarizes ? "" : "needs a model that tells speakers apart, see Models");
}

function formOf(file, options) {
  const form = new FormData();
  form.append("file", file, file.name);
  form.append("model", options.model);
  if (options.language) form.append("language", options.language);
  const hasSpeakers = options.speakers && options.task !== "translate";
  form.append("response_format", hasSpeakers ? "diarized_json" : "verbose_json");
  form.append("timestamp_granularities[]", "word");
  form.append("timestamp_granularities[]", "segment");
  return form;
}

const timed = ({ start, end, text, words, speaker }) => ({ start, end, speaker, words: wordsOf(text.trim(), words ?? []) });

// Transcribes a file while its text comes. Returns the code of its language, where it is told.
async function stream(file, options, transcript, signal) {
  const form = formOf(file, options);
  form.append("stream", "true");
  const route = options.task === "translate" ? "translations" : "transcriptions";
  const answer = await request(`/v1/audio/${route}`, { method: "POST", body: form, signal });
  let heard = "";
  for await (const event of events(answer)) {
    if (event.type === "transcript.text.delta") transcript.heard = heard += event.delta;
    else if (event.type === "transcript.segment" || event.type === "transcript.text.segment") {
      transcript.addSegment(timed(event));
      if (!event.speaker) transcript.covered(event.text);
      transcript.progress(event.end);
    } else if (event.type === "transcript.text.done") return event.languages?.[0]?.code;
  }
  throw new ApiError(0, { message: "The connection was lost." });
}

async function transcribeFile({ file, options, transcript, control }) {
  const begun = performance.now();
  say(transcript.status, options.task === "translate" ? "Translating" : "Transcribing");
  transcript.progress();
  try {
    const language = await stream(file, options, transcript, control.signal);
    const { script, audio } = transcript;
    if (language) script.language = language;
    script.duration = Number.isFinite(audio.duration) ? audio.duration : (script.segments.at(-1)?.end ?? 0);
    const took = seconds((performance.now() - begun) / 1000);
    const name = language ? `, ${languageName(language)}` : "";
    transcript.done(script.segments.length ? `${seconds(script.duration)} in ${took}${name}` : "No speech was found.");
  } catch (error) {
    const isCancelled = error.name === "AbortError";
    transcript.done(isCancelled ? "Cancelled" : error.message, isCancelled ? "" : "error");
  }
}

// One after the other: the server batches what several clients send.
async function transcribeFiles(files) {
  for (const file of files) {
    const options = { model: $("listen-model").value, language: $("listen-language").value, task: $("listen-task").value, speakers: $("listen-speakers").checked && !$("listen-speakers").disabled };
    const control = new AbortController();
    const script = { name: file.name, model: options.model, language: options.language || null, duration: null, segments: [] };
    const item = { file, options, control };
    const cancel = () => {
      control.abort();
      // One that waits has nothing to end.
      const at = waiting.indexOf(item);
      if (at >= 0) waiting.splice(at, 1)[0].transcript.done("Cancelled");
    };
    const transcript = new Transcript(script, cancel);
    transcript.onclose = cancel;
    transcript.recording = file;
    say(transcript.status, "Waiting for its turn");
    waiting.push(Object.assign(item, { transcript }));
  }
  if (isBusy) return;
  isBusy = true;
  while (waiting.length) await transcribeFile(waiting.shift());
  isBusy = false;
}

// Shows a transcript of the history.
export async function open(entry) {
  Transcript.of(entry).element.scrollIntoView({ block: "start" });
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
      transcript.script.duration = pieces.reduce((sum, piece) => sum + piece.length, 0) / recorder.rate;
      transcript.done("");
    }
    $("listen-wave").hidden = true;
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
    $("listen-wave").hidden = false;
    wave.reset(recorder.rate);
    const opened = await socket("/v1/audio/transcriptions/stream");
    const config = { model: $("listen-model").value, sample_rate: recorder.rate, word_times: true };
    if ($("listen-language").value) config.language = $("listen-language").value;
    opened.send(JSON.stringify({ type: "session.config", ...config }));
    early.splice(0).forEach((samples) => opened.send(toPcm(samples)));
    channel = opened;
  } catch (error) {
    await live?.stop();
    live = null;
    $("listen-wave").hidden = true;
    refresh();
    return sayError($("listen-status"), error);
  }
  const name = `Recording ${new Date().toLocaleTimeString()}`;
  transcript = new Transcript({ name, model: $("listen-model").value, language: $("listen-language").value || null, duration: null, segments: [] });
  channel.onmessage = ({ data }) => {
    const event = JSON.parse(data);
    if (event.type === "speech.started") say($("listen-status"), "Listening");
    else if (event.type === "partial") transcript.partial = event.text;
    else if (event.type === "committed") {
      const words = (event.words ?? []).map((word) => ({ gap: " ", text: word.text.trim(), start: word.start_ms / 1000, end: word.end_ms / 1000 }));
      // A text whose words could not be found in the audio.
      if (!words.length && event.text.trim()) words.push({ gap: " ", text: event.text.trim(), start: null, end: null });
      turnWords.push(...words);
      transcript.addWords(words);
    } else if (event.type === "turn.end") {
      transcript.partial = "";
      const [start, end] = [event.start_ms / 1000, event.end_ms / 1000];
      const isTimed = turnWords.every((word) => word.start !== null);
      const segments = isTimed ? cues(turnWords) : [{ start, end, words: turnWords }];
      for (const segment of segments) transcript.addSegment({ start: segment.start, end: segment.end, words: segment.words }, true);
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
  remember("listen-model", "listen-language", "listen-task", "listen-speakers");
  for (const id of ["listen-model", "listen-task"]) $(id).addEventListener("change", showModel);
  state.changed.addEventListener("change", refresh);
}
