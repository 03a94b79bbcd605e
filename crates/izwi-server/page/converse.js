// The page Converse: a spoken conversation over /v1/realtime. The server finds the turns; who speaks into an answer
// interrupts it, and the model keeps what was heard of it.

import { socket } from "./api.js";
import { capture } from "./capture.js";
import { $, choices, make, ms, say, sayError } from "./dom.js";
import { Player, RATE, fromPcm, toPcm } from "./player.js";
import { remember } from "./settings.js";
import { models, state, tellMissing } from "./service.js";
import { Waveform } from "./waveform.js";

const SEND_S = 0.1;
const KEEP_OPEN_MS = 10_000;

let wave;
let talk = null;
let interruptions = 0;

const toBase64 = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer)));
const fromBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;

// A chat model that a catalogue does not have is of the server's settings: a pipeline.
const isPipeline = (id) => state.catalogue.length > 0 && !state.catalogue.some((entry) => entry.id === id);

// What the chosen model is.
function describe() {
  const id = $("converse-model").value;
  const known = state.catalogue.find((entry) => entry.id === id)?.description;
  const pipeline = "A pipeline: one model transcribes, a language model answers, one speaks. Only text leaves for the language model.";
  say($("converse-about"), known ?? (id && isPipeline(id) ? pipeline : ""));
}

function refresh() {
  const able = models("chat");
  choices(
    $("converse-model"),
    able.map(({ id }) => ({ value: id, label: isPipeline(id) ? `${id} (pipeline)` : id })),
    "no model",
  );
  describe();
  tellMissing($("converse-notice"), "converses", able.length > 0, ({ tasks }) => tasks.includes("chat"));
  for (const id of ["start", "send", "text"]) $(`converse-${id}`).disabled = !able.length && !talk;
  $("converse-model").disabled ||= talk !== null;
}

// A conversation on one connection.
class Talk {
  #channel;
  #player;
  #recorder = null;
  #bubbles = new Map();
  #item = null;
  #isOver = true;
  #cut = new Set();
  #asked = null;
  #waiting = [];
  #keeper;
  #opened = Promise.withResolvers();
  // How turns end, as the server tells it.
  #turns = null;

  static async open() {
    const player = await Player.open();
    try {
      const channel = await socket(`/v1/realtime?model=${encodeURIComponent($("converse-model").value)}`);
      const talk = new Talk(channel, player);
      await talk.#opened.promise;
      return talk;
    } catch (error) {
      player.close();
      throw error;
    }
  }

  constructor(channel, player) {
    this.#channel = channel;
    this.#player = player;
    this.log = $("converse-log");
    this.log.replaceChildren();
    channel.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    channel.onclose = () => {
      this.#opened.resolve();
      this.close("The conversation has ended.");
    };
    player.onplayed = () => {
      if (this.#asked !== null && player.played) {
        $("converse-ttfa").textContent = ms(performance.now() - this.#asked);
        this.#asked = null;
      }
      $("converse-underruns").textContent = String(player.underruns);
    };
    player.ondone = () => this.#ended();
    this.#keeper = setInterval(() => this.#recorder || this.#send("input_audio_buffer.clear"), KEEP_OPEN_MS);
  }

  get hasMicrophone() {
    return this.#recorder !== null;
  }

  #send(type, members = {}) {
    if (this.#channel.readyState === WebSocket.OPEN) this.#channel.send(JSON.stringify({ type, ...members }));
  }

  #configure(rate) {
    const [listener] = models("asr");
    const { type, silence_duration_ms } = this.#turns ?? {};
    const isDefault = type === "server_vad" && silence_duration_ms === 500;
    const input = {
      format: { type: "audio/pcm", rate },
      // A pipeline may have settings of its own.
      ...(isDefault && { turn_detection: { type: "semantic_vad" } }),
      ...(listener && { transcription: { model: listener.id } }),
    };
    const output = { format: { type: "audio/pcm", rate: RATE } };
    const instructions = $("converse-style").value.trim();
    this.#send("session.update", { session: { type: "realtime", audio: { input, output }, ...(instructions && { instructions }) } });
  }

  async listen() {
    let length = 0;
    this.#recorder = await capture((samples) => {
      wave.push(samples);
      this.#waiting.push(samples);
      length += samples.length;
      if (this.#recorder && length >= this.#recorder.rate * SEND_S) {
        this.#waiting.splice(0).forEach((piece) => this.#send("input_audio_buffer.append", { audio: toBase64(toPcm(piece)) }));
        length = 0;
      }
    });
    $("converse-wave").hidden = false;
    wave.reset(this.#recorder.rate);
    this.#configure(this.#recorder.rate);
    say($("converse-status"), "Listening: speak now");
  }

  write(text) {
    this.interrupt();
    this.#asked = performance.now();
    this.#send("conversation.item.create", { item: { type: "message", role: "user", content: [{ type: "input_text", text }] } });
    this.#send("response.create");
    say($("converse-status"), "Thinking");
  }

  // Silences the answer that plays. Whether it did.
  interrupt(isTold = false) {
    if (this.#isOver || !this.#item) return false;
    const heard = Math.round(this.#player.playedMs);
    this.#cut.add(this.#item);
    // Where the user spoke, the server has ended the answer already.
    if (!isTold) this.#send("response.cancel");
    this.#send("conversation.item.truncate", { item_id: this.#item, content_index: 0, audio_end_ms: heard });
    this.#player.clear();
    this.#bubbles.get(this.#item)?.element.classList.add("cut");
    $("converse-interruptions").textContent = String((interruptions += 1));
    this.#ended();
    return true;
  }

  #ended() {
    this.#isOver = true;
    this.#item = null;
    $("converse-stop").disabled = true;
    say($("converse-status"), this.#recorder ? "Listening" : "");
  }

  #bubble(id, role, who) {
    if (!this.#bubbles.has(id)) {
      const said = make("span", { class: "said" });
      const element = make("p", { class: `bubble ${role}` }, make("span", { class: "who" }, who), said);
      this.log.append(element);
      this.#bubbles.set(id, { element, said });
    }
    this.log.scrollTop = this.log.scrollHeight;
    return this.#bubbles.get(id);
  }

  #receive(event) {
    const { type } = event;
    if (type === "session.created") {
      this.#turns = event.session.audio.input.turn_detection;
      this.#configure(RATE);
      this.#opened.resolve();
    } else if (type === "input_audio_buffer.speech_started") {
      if (!this.interrupt(true)) say($("converse-status"), "You speak");
    } else if (type === "input_audio_buffer.speech_stopped") {
      this.#asked = performance.now();
      say($("converse-status"), "Thinking");
    } else if (type === "conversation.item.added" && event.item.role === "user") {
      const text = event.item.content.map((part) => part.text ?? part.transcript ?? "").join("");
      this.#bubble(event.item.id, "user", "You").said.textContent = text || "(spoken)";
    } else if (type === "conversation.item.input_audio_transcription.completed") {
      this.#bubble(event.item_id, "user", "You").said.textContent = event.transcript.trim() || "(no words)";
    } else if (type === "response.output_audio_transcript.delta") {
      if (!this.#cut.has(event.item_id)) this.#bubble(event.item_id, "model", "The model").said.append(event.delta);
    } else if (type === "response.output_audio.delta") this.#play(event);
    else if (type === "response.output_audio.done") {
      if (event.item_id === this.#item) this.#player.end();
    } else if (type === "response.done") this.#answered(event.response);
    else if (type === "error") this.#refused(event.error);
  }

  #answered({ status, status_details: details }) {
    if (status === "failed") say($("converse-status"), details?.error?.message ?? "The answer failed.", "error");
    // An answer may have no audio.
    else if (this.#isOver) this.#ended();
  }

  #refused({ code, message }) {
    // The answer ended by itself while the user interrupted it.
    if (["response_cancel_not_active", "no_active_response"].includes(code)) return;
    say($("converse-status"), message, "error");
  }

  #play({ item_id: id, delta }) {
    if (this.#cut.has(id)) return;
    if (this.#item !== id) {
      this.#player.clear();
      this.#item = id;
      this.#isOver = false;
      $("converse-stop").disabled = false;
      say($("converse-status"), "The model speaks");
    }
    this.#player.push(fromPcm(fromBase64(delta)));
  }

  async close(message = "") {
    if (talk === this) talk = null;
    clearInterval(this.#keeper);
    this.#channel.onclose = this.#channel.onmessage = null;
    this.#channel.close();
    this.#player.clear();
    this.#player.close();
    await this.#recorder?.stop();
    this.#recorder = null;
    $("converse-wave").hidden = true;
    $("converse-stop").disabled = true;
    $("converse-start").textContent = "Start talking";
    $("converse-start").setAttribute("aria-pressed", "false");
    if ($("converse-status").dataset.kind !== "error") say($("converse-status"), message);
    refresh();
  }
}

async function opened() {
  say($("converse-status"), "Opening; a model that is not loaded loads first");
  talk ??= await Talk.open();
  say($("converse-status"), "");
  refresh();
  return talk;
}

async function toggle() {
  const button = $("converse-start");
  if (talk?.hasMicrophone) return talk.close("The conversation has ended.");
  button.disabled = true;
  try {
    await (await opened()).listen();
    button.textContent = "Stop talking";
    button.setAttribute("aria-pressed", "true");
  } catch (error) {
    await talk?.close();
    sayError($("converse-status"), error);
  }
  button.disabled = false;
}

async function write(event) {
  event.preventDefault();
  const text = $("converse-text").value.trim();
  if (!text) return;
  try {
    (await opened()).write(text);
    $("converse-text").value = "";
  } catch (error) {
    sayError($("converse-status"), error);
  }
}

export function start() {
  wave = new Waveform($("converse-wave"), { follows: true });
  $("converse-start").addEventListener("click", toggle);
  $("converse-stop").addEventListener("click", () => talk?.interrupt());
  $("converse-form").addEventListener("submit", write);
  $("converse-model").addEventListener("change", describe);
  remember("converse-model", "converse-style");
  state.changed.addEventListener("change", refresh);
}
