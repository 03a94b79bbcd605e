// The page Speak.

import { $, choices, clock, factor, make, ms, save, say, sayError, seconds } from "./dom.js";
import { OFFERS, encode, offer } from "./downloads.js";
import { languageChoices } from "./languages.js";
import * as history from "./archive.js";
import * as lexicons from "./lexicons.js";
import { Playback } from "./playback.js";
import { RATE, fromPcm, wav } from "./player.js";
import { remember, setField } from "./settings.js";
import { WordFinder, speak } from "./speech.js";
import { Waveform } from "./waveform.js";
import { facts, has, languages, models, state, tellMissing, voices } from "./service.js";

// Samples of the keys of the waveform.
const KEY_STEPS = { ArrowLeft: -2 * RATE, ArrowDown: -2 * RATE, ArrowRight: 2 * RATE, ArrowUp: 2 * RATE, PageDown: -10 * RATE, PageUp: 10 * RATE };
const FIELDS = ["text", "model", "voice", "speed", "style", "language", "seed"].map((name) => `speak-${name}`);

let session = null;
// What was spoken: its text, its words with their times, its audio.
let take = null;
// What the server told of the text: shown again once it is spoken.
let warnings = [];
let wave;

function showModels() {
  const speaking = models("tts");
  choices(
    $("speak-model"),
    speaking.map(({ id, default: selected }) => ({ value: id, label: id, selected })),
    "no model",
  );
  tellMissing($("speak-notice"), "speaks", speaking.length > 0, ({ tasks }) => tasks.includes("tts"));
  $("speak-go").disabled = !speaking.length || session !== null;
}

function showVoices() {
  const model = $("speak-model").value;
  const own = voices(model);
  choices(
    $("speak-voice"),
    own.map((voice) => ({
      value: voice.id,
      label: facts(voice) ? `${voice.id} (${facts(voice)})` : voice.id,
      selected: voice.default,
    })),
    "the model's own",
  );
  choices($("speak-language"), languageChoices(languages(model), "That of the voice"));
}

function refresh() {
  showModels();
  showVoices();
}

function config() {
  const text = $("speak-text").value;
  const chosen = { text, speed: Number($("speak-speed").value) };
  const optional = {
    model: $("speak-model").value,
    voice: $("speak-voice").value,
    instructions: $("speak-style").value.trim(),
    language: $("speak-language").value,
  };
  for (const [name, value] of Object.entries(optional)) if (value) chosen[name] = value;
  if ($("speak-seed").value !== "") chosen.seed = Number($("speak-seed").value);
  const named = lexicons.chosen();
  if (named.length) chosen.lexicons = named;
  return chosen;
}

// The text that is spoken, each of its words in a span of its own once its times are known.
class Reading {
  #box = $("speak-reading");
  #spans = [];
  #rest;
  #restFrom = 0;
  #finder;

  constructor(text) {
    this.text = text;
    this.words = [];
    this.#finder = new WordFinder(text);
    this.#rest = document.createTextNode(text);
    this.#box.replaceChildren(this.#rest);
    this.#box.scrollTop = 0;
  }

  add({ text, startMs, endMs }) {
    const place = this.#finder.find(text);
    if (!place) return;
    const span = make("span", { "data-start": startMs }, this.text.slice(place.start, place.end));
    const before = this.text.slice(this.#restFrom, place.start);
    const after = document.createTextNode(this.text.slice(place.end));
    this.#rest.replaceWith(before, span, after);
    [this.#rest, this.#restFrom] = [after, place.end];
    this.#spans.push(span);
    this.words.push({ text, startMs, endMs });
  }

  // Lights the words that are played up.
  light(playedMs) {
    const box = this.#box;
    this.words.forEach(({ startMs, endMs }, at) => {
      const span = this.#spans[at];
      const isNow = playedMs >= startMs && playedMs < endMs;
      span.className = isNow ? "now" : playedMs >= endMs ? "past" : "";
      if (isNow) {
        const [top, bottom] = [span.offsetTop - box.offsetTop, span.offsetTop - box.offsetTop + span.offsetHeight];
        if (top < box.scrollTop || bottom > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight / 3;
      }
    });
  }
}

function showWarnings() {
  $("speak-warning").hidden = !warnings.length;
  say($("speak-warning"), warnings.join(". "));
}

// Shows where the playback is.
function showPosition() {
  const [at, all] = [take?.playback?.position ?? 0, take?.playback?.length ?? 0].map((samples) => samples / RATE);
  wave.played = at;
  take?.reading.light(at * 1000);
  $("speak-time").textContent = `${clock(at)} / ${clock(all)}`;
  $("speak-underruns").textContent = take?.playback ? String(take.playback.underruns) : "–";
  const slider = $("speak-wave");
  slider.setAttribute("aria-valuemax", all.toFixed(2));
  slider.setAttribute("aria-valuenow", at.toFixed(2));
  slider.setAttribute("aria-valuetext", all ? `${seconds(at)} of ${seconds(all)}` : "nothing to play yet");
}

function showControls() {
  const playback = take?.playback;
  const hasAudio = Boolean(playback?.length);
  $("speak-go").disabled = !has("tts") || session !== null;
  $("speak-stop").disabled = session === null && !playback?.isPlaying;
  $("speak-play").disabled = !hasAudio;
  $("speak-play").dataset.playing = String(hasAudio && playback.isPlaying);
  $("speak-play").setAttribute("aria-label", hasAudio && playback.isPlaying ? "Pause" : "Play");
  $("speak-wave").setAttribute("aria-disabled", String(!hasAudio));
  $("speak-wave").tabIndex = hasAudio ? 0 : -1;
  // What still grows is no file yet.
  $("speak-save").disabled = !hasAudio || !playback.isWhole;
  $("speak-format").disabled = $("speak-save").disabled;
}

function setTake(text) {
  take?.playback?.close();
  $("speak-take").hidden = false;
  take = { reading: new Reading(text), playback: null };
  wave.reset(RATE);
  for (const id of ["ttfa", "rtf", "underruns", "length"]) $(`speak-${id}`).textContent = "–";
  showPosition();
  return take;
}

function usePlayback(playback) {
  take.playback = playback;
  playback.onchange = showControls;
  showControls();
}

async function begin() {
  const chosen = config();
  const own = setTake(chosen.text);
  say($("speak-status"), "Generating");
  let ignored = "";
  warnings = [];
  showWarnings();
  // Stop may be asked for before there is a connection.
  let isStopped = false;
  session = { stop: () => (isStopped = true) };
  showControls();
  $("speak-stop").disabled = false;
  let length = 0;
  try {
    const begun = await speak(chosen, {
      ignored(fields) {
        if (fields.length) ignored = `; the model ignores ${fields.join(", ")}`;
      },
      audio(samples) {
        wave.push(samples);
        length += samples.length;
        $("speak-length").textContent = seconds(length / RATE);
        if (length === samples.length) showControls();
      },
      word: (word) => own.reading.add(word),
      first(firstMs) {
        say($("speak-status"), "Speaking");
        $("speak-ttfa").textContent = ms(firstMs);
      },
      result({ rtf, ttfa_ms }) {
        $("speak-rtf").textContent = factor(rtf);
        $("speak-rtf").title = `The server's first audio came after ${ms(ttfa_ms)}`;
      },
      played: () => own === take && showPosition(),
      warning(text) {
        warnings.push(text);
        showWarnings();
      },
      holding(leftMs) {
        $("speak-now").hidden = leftMs <= 0;
        if (leftMs > 0) say($("speak-status"), `Waiting until it plays without gaps, ${Math.ceil(leftMs / 1000)} s`);
      },
    });
    if (own !== take) {
      // Something else was opened meanwhile.
      begun.stop();
      begun.playback.close();
      session = null;
      return showControls();
    }
    session = begun;
    usePlayback(begun.playback);
    if (isStopped) begun.stop();
    const result = await begun.generated;
    $("speak-rtf").textContent = factor(result.rtf);
    session = null;
    own.stop = begun.stop;
    showControls();
    if (result.duration_s && !result.interrupted) {
      const { text, ...settings } = chosen;
      const audio = wav(begun.playback.pieces, RATE);
      history.add({ kind: "speech", title: text.slice(0, 200), text, settings, words: own.reading.words, seconds: result.duration_s, audio });
    }
    await begun.done;
    if (own !== take) return;
    say($("speak-status"), isStopped || result.interrupted || own.isStopped ? "Stopped" : `Done: ${seconds(result.duration_s)} of audio${ignored}`);
    own.reading.light(result.interrupted || own.isStopped ? -1 : Infinity);
  } catch (error) {
    if (own !== take) return;
    take.playback = null;
    session = null;
    sayError($("speak-status"), error);
  }
  $("speak-now").hidden = true;
  showControls();
}

function stop() {
  if (session) session.stop();
  else {
    take.isStopped = true;
    take.stop ? take.stop() : take.playback?.cut();
  }
  say($("speak-status"), "Stopped");
  $("speak-now").hidden = true;
}

// Shows what was spoken before: its text and settings, and its audio, which is not generated again.
export async function open({ text, settings, words, audio }) {
  session?.stop();
  $("speak-now").hidden = true;
  setTake(text);
  const { model, voice, instructions: style, language, seed, speed = 1 } = settings;
  const fields = { text, model, voice, style, language, seed, speed };
  for (const [name, value] of Object.entries(fields)) setField($(`speak-${name}`), value ?? "");
  const own = take;
  if (!audio) return say($("speak-status"), "From the history, which has not kept the sound: it was too long");
  const bytes = await audio.arrayBuffer();
  const samples = fromPcm(bytes.slice(44));
  const playback = await Playback.of([samples]);
  if (own !== take) return playback.close();
  words.forEach((word) => own.reading.add(word));
  wave.push(samples);
  $("speak-length").textContent = seconds(samples.length / RATE);
  playback.onplayed = showPosition;
  usePlayback(playback);
  showPosition();
  say($("speak-status"), "From the history: nothing is generated again");
}

async function download() {
  const format = $("speak-format").value;
  const { playback, reading } = take;
  say($("speak-status"), "Preparing the file");
  try {
    const blob = await encode(format, playback.pieces, reading.words);
    save(blob, `speech.${offer(format).extension}`);
    say($("speak-status"), `Saved as speech.${offer(format).extension}`);
  } catch (error) {
    sayError($("speak-status"), error);
  }
}

function seek(sample) {
  if (!take?.playback?.length) return;
  take.playback.seek(sample);
  showPosition();
}

function startPlayer() {
  const slider = $("speak-wave");
  const seekTo = ({ clientX }) => {
    const { left, width } = slider.getBoundingClientRect();
    seek(wave.timeAt((clientX - left) / width) * RATE);
  };
  slider.addEventListener("pointerdown", (event) => {
    slider.setPointerCapture(event.pointerId);
    seekTo(event);
  });
  slider.addEventListener("pointermove", (event) => slider.hasPointerCapture(event.pointerId) && seekTo(event));
  slider.addEventListener("keydown", (event) => {
    const playback = take?.playback;
    if (!playback) return;
    if (event.key in KEY_STEPS) seek(playback.position + KEY_STEPS[event.key]);
    else if (event.key === "Home") seek(0);
    else if (event.key === "End") seek(playback.length);
    else if (event.key === " " || event.key === "Enter") toggle();
    else return;
    event.preventDefault();
  });
  $("speak-reading").addEventListener("click", ({ target }) => {
    if (target.dataset.start !== undefined) seek((Number(target.dataset.start) / 1000) * RATE);
  });
  $("speak-play").addEventListener("click", toggle);
  $("speak-save").addEventListener("click", download);
  $("speak-format").replaceChildren(...OFFERS.map(({ value, label }) => new Option(label, value)));
}

function toggle() {
  const { playback } = take;
  if (playback.isPlaying) playback.pause();
  else playback.play();
}

export function start() {
  wave = new Waveform($("speak-wave"));
  $("speak-speed").addEventListener("input", ({ target }) => {
    $("speak-speed-value").textContent = `${Number(target.value).toFixed((Number(target.value) * 10) % 1 ? 2 : 1)}×`;
  });
  $("speak-model").addEventListener("change", showVoices);
  $("speak-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!session) begin();
  });
  $("speak-text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("speak-form").requestSubmit();
  });
  $("speak-stop").addEventListener("click", stop);
  $("speak-now").addEventListener("click", () => session?.playNow?.());
  startPlayer();
  remember(...FIELDS, "speak-format");
  lexicons.start();
  state.changed.addEventListener("change", refresh);
}
