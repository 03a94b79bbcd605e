// The page Listen: transcripts of the microphone and of files.

import { ApiError, events, request } from "./api.js";
import { wordsOf } from "./captions.js";
import { $, choices, say, seconds } from "./dom.js";
import { languageChoices, languageName } from "./languages.js";
import { Recording } from "./recording.js";
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
  const tellsSpeakers = $("listen-speakers").checked && !$("listen-speakers").disabled;
  const options = { model: $("listen-model").value, language: $("listen-language").value, tellsSpeakers };
  const wanted = new Recording(options, { tell: (text, kind) => say($("listen-status"), text, kind), level: (samples) => wave.push(samples) });
  button.disabled = true;
  say($("listen-status"), "Opening the microphone");
  live = wanted;
  wanted.over.then(() => {
    live = null;
    $("listen-wave").hidden = true;
    button.setAttribute("aria-pressed", "false");
    button.textContent = "Record";
    refresh();
  });
  const rate = await wanted.open();
  if (!rate) return;
  $("listen-wave").hidden = false;
  wave.reset(rate);
  button.disabled = false;
  button.setAttribute("aria-pressed", "true");
  button.textContent = "Stop";
}

export function start() {
  wave = new Waveform($("listen-wave"), { follows: true });
  $("listen-record").addEventListener("click", () => (live ? live.finish() : record()));
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
