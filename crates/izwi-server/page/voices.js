// The page Voices: try, make of a recording, delete.

import { request } from "./api.js";
import { capture } from "./capture.js";
import { $, choices, make, say, sayError, seconds } from "./dom.js";
import { wav } from "./player.js";
import { facts, models, read, state, tellMissing } from "./service.js";
import { speak } from "./speech.js";
import { Waveform } from "./waveform.js";

const LONGEST_S = 30;
let wave;
let live = null;
let recording = null;
let trying = null;
const rows = new Map();

// The models that clone voices, as the catalogue or the loaded model says.
function cloners() {
  const listed = new Set(state.catalogue.filter((entry) => entry.clones_voices).map(({ id }) => id));
  return models("tts").filter((model) => model.clones_voices || (model.clones_voices !== false && listed.has(model.id)));
}

async function play(voice, model, button) {
  if (trying) return trying.stop();
  button.textContent = "Stop";
  say($("voices-status"), `Generating with ${voice}`);
  try {
    trying = await speak({ text: $("voices-line").value.trim() || "Hello.", model, voice }, { first: () => say($("voices-status"), `${voice} speaks`) });
    const { duration_s } = await trying.generated;
    await trying.done;
    say($("voices-status"), `${voice}: ${seconds(duration_s)}`);
  } catch (error) {
    sayError($("voices-status"), error);
  }
  trying?.playback.close();
  trying = null;
  button.textContent = "Try";
}

async function remove(voice) {
  if (!confirm(`Delete the voice ${voice}? This cannot be undone.`)) return;
  try {
    await request(`/v1/audio/voices/${encodeURIComponent(voice)}`, { method: "DELETE" });
    say($("voices-status"), `${voice} is deleted`);
    await read();
  } catch (error) {
    sayError($("voices-status"), error);
  }
}

function rowOf(voice) {
  const id = `${voice.owned_by} ${voice.model} ${voice.id}`;
  if (rows.has(id)) return rows.get(id);
  const model = voice.owned_by === "user" ? (voice.models[0] ?? voice.model) : voice.model;
  const name = make("span", { class: "name" }, voice.id);
  const tag = make("span", { class: "tag" }, facts(voice));
  const about = make("p", { class: "about" }, [voice.owned_by === "user" ? voice.text : voice.description, model].filter(Boolean).join(" · "));
  const tryIt = make("button", { type: "button", class: "slim", "aria-label": `Try ${voice.id} of ${model}` }, "Try");
  tryIt.addEventListener("click", () => play(voice.id, model, tryIt));
  const actions = make("div", { class: "actions" }, tryIt);
  if (voice.owned_by === "user") {
    actions.append(make("button", { type: "button", class: "slim", "aria-label": `Delete ${voice.id}`, onclick: () => remove(voice.id) }, "Delete"));
  }
  const row = make("li", { "data-voice": voice.id }, make("div", {}, name, tag, about), actions);
  rows.set(id, row);
  return row;
}

function refresh() {
  const mine = state.voices.filter(({ owned_by: owner }) => owner === "user");
  const own = state.voices.filter(({ owned_by: owner }) => owner !== "user");
  const elements = [...mine, ...own].map(rowOf);
  if (!elements.length) elements.push(make("li", { class: "soft" }, state.known ? "No installed model has voices. Pull one on the page Models." : "Reading …"));
  const list = $("voices-list");
  if (elements.length !== list.children.length || elements.some((element, at) => list.children[at] !== element)) {
    list.replaceChildren(...elements);
  }
  const able = cloners();
  choices(
    $("voices-model"),
    able.map(({ id }) => ({ value: id, label: id })),
    "no model",
  );
  tellMissing($("voices-none"), "clones voices", able.length > 0, (entry) => entry.clones_voices);
  $("voices-make").disabled = !able.length;
}

function setRecording(blob, name, about) {
  recording = blob && { blob, name };
  say($("voices-chosen"), about);
  if (blob) $("voices-audio").src = URL.createObjectURL(blob);
}

async function record() {
  const button = $("voices-record");
  if (live) return live.finish();
  const pieces = [];
  let length = 0;
  button.disabled = true;
  try {
    live = await capture((samples) => {
      pieces.push(samples);
      length += samples.length;
      wave.push(samples);
      say($("voices-chosen"), `recording, ${Math.floor(length / (live?.rate ?? 48_000))} s`);
      if (live && length / live.rate >= LONGEST_S) live.finish();
    });
  } catch (error) {
    button.disabled = false;
    return sayError($("voices-made"), error);
  }
  wave.reset(live.rate);
  say($("voices-made"), "");
  live.finish = async () => {
    const { rate, stop } = live;
    live = null;
    await stop();
    button.textContent = "Record";
    button.setAttribute("aria-pressed", "false");
    setRecording(wav(pieces, rate), "recording.wav", `recorded ${seconds(length / rate)}`);
  };
  button.disabled = false;
  button.textContent = "Stop";
  button.setAttribute("aria-pressed", "true");
}

async function create(event) {
  event.preventDefault();
  const status = $("voices-made");
  if (!recording) return say(status, "Record something, or choose a file.", "error");
  const form = new FormData();
  form.append("model", $("voices-model").value);
  form.append("name", $("voices-name").value);
  form.append("ref_audio", recording.blob, recording.name);
  if ($("voices-text").value.trim()) form.append("ref_text", $("voices-text").value.trim());
  else form.append("x_vector_only_mode", "true");
  $("voices-make").disabled = true;
  say(status, "Making the voice; a model that is not loaded loads first");
  try {
    const made = await (await request("/v1/audio/voices", { method: "POST", body: form })).json();
    say(status, `${made.id} is saved`);
    $("voices-consent").checked = false;
    await read();
  } catch (error) {
    sayError(status, error);
  }
  $("voices-make").disabled = false;
}

export function start() {
  wave = new Waveform($("voices-wave"), { follows: true });
  $("voices-record").addEventListener("click", record);
  $("voices-file").addEventListener("change", ({ target }) => {
    const [file] = target.files;
    if (file) setRecording(file, file.name, file.name);
    target.value = "";
  });
  $("voices-form").addEventListener("submit", create);
  state.changed.addEventListener("change", refresh);
}
