// The page Speak.

import { $, choices, factor, make, ms, say, sayError, seconds } from "./dom.js";
import { RATE, wav } from "./player.js";
import { WordFinder, speak } from "./speech.js";
import { Waveform } from "./waveform.js";
import { has, models, state, tellMissing, voices } from "./service.js";

let session = null;
let wave;
let words = [];
let file = null;

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
      label: voice.owned_by === "user" ? `${voice.id} (yours)` : voice.language ? `${voice.id} (${voice.language})` : voice.id,
      selected: voice.default,
    })),
    "the model's own",
  );
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
    language: $("speak-language").value.trim(),
  };
  for (const [name, value] of Object.entries(optional)) if (value) chosen[name] = value;
  if ($("speak-seed").value !== "") chosen.seed = Number($("speak-seed").value);
  return chosen;
}

// Lights the words that are played up.
function light(playedMs) {
  const box = $("speak-reading");
  for (const { span, startMs, endMs } of words) {
    const isNow = playedMs >= startMs && playedMs < endMs;
    span.className = isNow ? "now" : playedMs >= endMs ? "past" : "";
    if (isNow) {
      const [top, bottom] = [span.offsetTop - box.offsetTop, span.offsetTop - box.offsetTop + span.offsetHeight];
      if (top < box.scrollTop || bottom > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight / 3;
    }
  }
}

function setFile(pieces) {
  const link = $("speak-save");
  if (file) URL.revokeObjectURL(file);
  file = pieces?.length ? URL.createObjectURL(wav(pieces, RATE)) : null;
  if (file) link.setAttribute("href", file);
  else link.removeAttribute("href");
  link.setAttribute("aria-disabled", String(!file));
}

async function begin() {
  const chosen = config();
  const box = $("speak-reading");
  const finder = new WordFinder(chosen.text);
  let rest = document.createTextNode(chosen.text);
  let restFrom = 0;
  words = [];
  box.replaceChildren(rest);
  box.scrollTop = 0;
  wave.reset(RATE);
  setFile(null);
  for (const id of ["ttfa", "rtf", "underruns", "length"]) $(`speak-${id}`).textContent = "–";
  $("speak-go").disabled = true;
  $("speak-stop").disabled = false;
  say($("speak-status"), "Generating");
  let length = 0;
  let ignored = "";
  try {
    session = await speak(chosen, {
      ignored(fields) {
        if (fields.length) ignored = `; the model ignores ${fields.join(", ")}`;
      },
      audio(samples) {
        length += samples.length;
        wave.push(samples);
        $("speak-length").textContent = seconds(length / RATE);
      },
      word({ text, startMs, endMs }) {
        const place = finder.find(text);
        if (!place) return;
        const span = make("span", {}, chosen.text.slice(place.start, place.end));
        const before = chosen.text.slice(restFrom, place.start);
        const after = document.createTextNode(chosen.text.slice(place.end));
        rest.replaceWith(before, span, after);
        [rest, restFrom] = [after, place.end];
        words.push({ span, startMs, endMs });
      },
      first(firstMs) {
        say($("speak-status"), "Speaking");
        $("speak-ttfa").textContent = ms(firstMs);
      },
      result({ rtf, ttfa_ms }) {
        $("speak-rtf").textContent = factor(rtf);
        $("speak-rtf").title = `The server's first audio came after ${ms(ttfa_ms)}`;
      },
      played(playedMs, underruns) {
        wave.played = playedMs / 1000;
        $("speak-underruns").textContent = String(underruns);
        light(playedMs);
      },
      warning: (text) => say($("speak-status"), text),
    });
    const result = await session.done;
    $("speak-rtf").textContent = factor(result.rtf);
    setFile(result.pieces);
    say($("speak-status"), result.interrupted ? "Stopped" : `Done: ${seconds(result.duration_s)} of audio${ignored}`);
    light(result.interrupted ? -1 : Infinity);
  } catch (error) {
    sayError($("speak-status"), error);
  } finally {
    session = null;
    $("speak-go").disabled = !has("tts");
    $("speak-stop").disabled = true;
  }
}

export function start() {
  wave = new Waveform($("speak-wave"));
  $("speak-speed").addEventListener("input", ({ target }) => {
    $("speak-speed-value").textContent = `${Number(target.value).toFixed(Number(target.value) * 10 % 1 ? 2 : 1)}×`;
  });
  $("speak-model").addEventListener("change", showVoices);
  $("speak-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!session) begin();
  });
  $("speak-stop").addEventListener("click", () => session?.stop());
  state.changed.addEventListener("change", refresh);
}
