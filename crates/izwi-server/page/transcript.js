// The view of one transcript: its words with their times, the sound of them, corrections, speakers, files.

import * as history from "./archive.js";
import { FORMS, textOf } from "./captions.js";
import { button, make, save, say, seconds } from "./dom.js";

// Colours of speakers, which style sheets name; further ones begin again.
const COLOURS = 6;
const KEEP_MS = 800;

// What one speaker says without another in between, or what nobody is known of yet.
function runsOf(segments) {
  const runs = [];
  for (const segment of segments) {
    const last = runs.at(-1);
    if (last && last.speaker === segment.speaker) {
      last.words.push(...segment.words);
      last.end = segment.end;
    } else runs.push({ ...segment, words: [...segment.words] });
  }
  return runs;
}

const goesOn = (before, now) => before.speaker === now.speaker && before.words.every((word, at) => word === now.words[at]);

export class Transcript {
  #words = [];
  #spans = new Map();
  #turn = null;
  #live = new Map();
  #colours = new Map();
  #stopAt = null;
  #isCorrecting = false;
  #entry = null;
  #keeper = null;
  #kept = Promise.resolve();
  #blob = null;
  #covered = 0;
  #heard = "";

  // `script` as captions.js says. `onstop` cancels, where there is something to cancel.
  constructor(script, onstop = null) {
    this.script = script;
    const { name } = script;
    this.text = make("div", { class: "words", tabindex: "0", "aria-label": `Transcript of ${name}`, role: "log", "aria-live": "polite" });
    this.audio = make("audio", { controls: true, "aria-label": `Recording ${name}`, hidden: true });
    this.status = make("p", { class: "status", role: "status" });
    this.bar = make("progress", { "aria-label": `Progress of ${name}`, hidden: true });
    this.stop = button("Cancel", onstop ?? (() => {}), { hidden: !onstop, "aria-label": `Cancel ${name}` });
    this.speakers = make("div", { class: "speakers", role: "group", "aria-label": `Speakers of ${name}`, hidden: true });
    this.correct = button("Correct", () => this.#setCorrecting(!this.#isCorrecting), { "aria-pressed": "false", disabled: true });
    const stem = name.replace(/\.[a-z0-9]+$/i, "");
    const files = FORMS.map(({ label, extension, type, write }) =>
      button(label, () => save(new Blob([write(this.script)], { type }), `${stem}.${extension}`), { disabled: true }),
    );
    this.buttons = [button("Copy", () => this.#copy(), { disabled: true }), ...files, this.correct];
    const remove = button("Close", () => this.close(), { "aria-label": `Close ${name}` });
    const head = make("div", { class: "title" }, make("h2", {}, name), this.stop, remove);
    this.element = make("article", { class: "card result" }, head, this.bar, this.status, this.speakers, this.text, this.audio, make("div", { class: "actions" }, ...this.buttons));
    this.audio.addEventListener("timeupdate", () => this.#light());
    this.audio.addEventListener("seeked", () => this.#light());
    this.text.addEventListener("click", ({ target }) => this.#clicked(target));
    this.text.addEventListener("keydown", (event) => this.#key(event));
    document.getElementById("listen-results").prepend(this.element);
  }

  close() {
    this.audio.pause();
    URL.revokeObjectURL(this.audio.src);
    this.element.remove();
    this.onclose?.();
  }

  // Appends a segment.
  addSegment(segment) {
    this.script.segments.push(segment);
    this.#turn = segment.speaker === undefined ? null : this.#openTurn(this.text, segment);
    this.#addWords(this.#turn ?? this.text, segment.words, segment);
    this.text.scrollTop = this.text.scrollHeight;
  }

  // What is said in a turn of a live recording, in place of what was known of it. What stays is not drawn again.
  setTurn(turn, segments) {
    if (!this.#live.has(turn)) {
      const box = make("div", { class: "said" });
      const partial = this.text.querySelector(".partial");
      if (partial) partial.before(box);
      else this.text.append(box);
      this.#live.set(turn, { box, segments: [], runs: [] });
    }
    const live = this.#live.get(turn);
    live.segments = segments;
    this.script.segments = [...this.#live.values()].flatMap((each) => each.segments);
    const runs = runsOf(segments);
    let kept = 0;
    while (kept < runs.length && kept < live.runs.length && goesOn(live.runs[kept], runs[kept])) kept += 1;
    for (const { element, words } of live.runs.splice(kept)) {
      element.remove();
      for (const [span, word] of this.#spans) if (words.includes(word)) this.#spans.delete(span);
    }
    runs.forEach((run, at) => {
      const shown = live.runs[at] ?? this.#openRun(live.box, run);
      this.#addWords(shown.said, run.words.slice(shown.words.length), run);
      // What its button plays.
      shown.turn.end = run.end;
      live.runs[at] = { ...shown, words: run.words };
    });
    // Words of an earlier turn may have changed.
    this.#words = [...this.text.querySelectorAll(".word")];
    this.text.scrollTop = this.text.scrollHeight;
  }

  // The words of one speaker in a live turn, none yet; those of nobody known are a paragraph.
  #openRun(box, run) {
    const said = run.speaker === undefined ? make("p", {}) : this.#openTurn(box, run);
    if (run.speaker === undefined) box.append(said);
    return { speaker: run.speaker, turn: run, said, element: run.speaker === undefined ? said : said.parentElement, words: [] };
  }

  #addWords(box, words, segment) {
    const partial = this.text.querySelector(".partial");
    for (const word of words) {
      const start = word.start ?? segment.start ?? null;
      const span = make("span", { class: "word", tabindex: "-1", "data-start": start, "data-end": word.end ?? segment.end, title: start === null ? null : seconds(start) }, word.text);
      this.#spans.set(span, word);
      this.#words.push(span);
      const isFirst = !box.firstChild || box.firstChild === partial;
      // The first word of a segment has no gap of its own.
      const gap = isFirst ? "" : word.gap || (word === words[0] ? " " : "");
      const nodes = gap ? [gap, span] : [span];
      if (partial && box === this.text) partial.before(...nodes);
      else box.append(...nodes);
    }
  }

  // What was heard so far, of which the segments cover the first part.
  set heard(text) {
    this.#heard = text;
    this.partial = this.#heard.slice(this.#covered);
  }

  covered(text) {
    this.#covered += this.#covered ? text.length : text.trimStart().length;
    this.partial = this.#heard.slice(this.#covered);
  }

  set partial(text) {
    let span = this.text.querySelector(".partial");
    if (!text) return void span?.remove();
    if (!span) this.text.append((span = make("span", { class: "partial", "aria-hidden": "true" })));
    say(span, this.#words.length ? text : text.trimStart());
    this.text.scrollTop = this.text.scrollHeight;
  }

  set recording(blob) {
    this.#blob = blob;
    if (!blob) return;
    this.audio.src = URL.createObjectURL(blob);
    this.audio.hidden = false;
  }

  // Progress up to a second of the recording; without one there is work of unknown length.
  progress(at = null) {
    this.bar.hidden = false;
    const all = this.audio.duration;
    if (at === null || !Number.isFinite(all)) return this.bar.removeAttribute("value");
    this.bar.max = all;
    this.bar.value = Math.min(at, all);
  }

  // The end: what is there can be saved and corrected, and is kept in the history.
  done(message, kind) {
    this.partial = "";
    this.bar.hidden = true;
    this.stop.hidden = true;
    const hasText = this.script.segments.some((segment) => textOf(segment));
    this.buttons.forEach((each) => (each.disabled = !hasText));
    say(this.status, message, kind);
    this.#showSpeakers();
    if (hasText) this.#keep(true);
  }

  // Shows a transcript of the history; corrections go there.
  static of({ id, at, script, audio, title, kind }) {
    const shown = new Transcript({ ...script, segments: [] });
    shown.#entry = { id, at, title, kind };
    shown.recording = audio;
    for (const segment of script.segments) shown.addSegment(segment);
    shown.#showSpeakers();
    shown.buttons.forEach((each) => (each.disabled = false));
    say(shown.status, "From the history");
    return shown;
  }

  async #keep(isNew = false) {
    clearTimeout(this.#keeper);
    const write = async () => {
      const entry = { kind: "transcript", title: this.script.name, ...this.#entry, changed: Date.now(), script: this.script, seconds: this.script.duration, audio: this.#blob };
      const id = await history.add(entry);
      if (id !== null) this.#entry = { ...this.#entry, id, at: this.#entry?.at ?? entry.changed };
    };
    // One after the other: the first one gives the entry its number.
    const next = () => (this.#kept = this.#kept.then(write));
    if (isNew) await next();
    else this.#keeper = setTimeout(next, KEEP_MS);
  }

  #light() {
    const now = this.audio.currentTime;
    for (const span of this.#words) {
      const isNow = now > 0 && now >= Number(span.dataset.start) && now < Number(span.dataset.end);
      span.classList.toggle("now", isNow);
    }
  }

  // Plays from a second on, up to another where one is given.
  #play(start, end = null) {
    if (!this.audio.src || !Number.isFinite(start)) return;
    clearTimeout(this.#stopAt);
    this.audio.currentTime = start;
    this.audio.play();
    // `timeupdate` comes too seldom for a word.
    if (end !== null) this.#stopAt = setTimeout(() => this.audio.pause(), (end - start) * 1000 + 120);
  }

  #clicked(target) {
    const word = target.closest(".word");
    if (!word || target.tagName === "INPUT") return;
    const [start, end] = [Number(word.dataset.start ?? Number.NaN), Number(word.dataset.end ?? Number.NaN)];
    if (!this.#isCorrecting) return this.#play(start);
    this.#play(start, end);
    this.#edit(word);
  }

  #key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const word = document.activeElement.closest(".word");
    if (event.target.tagName === "INPUT") return;
    if (step) {
      const next = this.#words[word ? this.#words.indexOf(word) + step : 0];
      next?.focus();
      event.preventDefault();
    } else if (event.key === "Enter" && word) {
      this.#clicked(word);
      event.preventDefault();
    }
  }

  #setCorrecting(isWanted) {
    this.#isCorrecting = isWanted;
    this.correct.setAttribute("aria-pressed", String(isWanted));
    this.text.classList.toggle("correcting", isWanted);
    say(this.status, isWanted ? "Choose a word: it is played, and can be changed. Arrow keys move, Enter chooses." : "");
  }

  // A field in place of a word. Enter keeps what is written, Escape what was there; the next word follows a Tab.
  #edit(span) {
    const word = this.#spans.get(span);
    const field = make("input", { type: "text", class: "word-field", value: word.text, "aria-label": `Word ${word.text}`, size: Math.max(2, word.text.length), spellcheck: "false", autocomplete: "off" });
    let isOver = false;
    const end = (isKept) => {
      if (isOver) return;
      isOver = true;
      const text = isKept ? field.value.trim() : word.text;
      if (text !== word.text) {
        word.text = text;
        span.classList.add("corrected");
        this.#keep();
      }
      span.textContent = word.text || "∅";
      span.classList.toggle("gone", !word.text);
    };
    field.addEventListener("blur", () => end(true));
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape" && event.key !== "Tab") return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key !== "Escape");
      span.focus();
      const next = this.#words[this.#words.indexOf(span) + (event.shiftKey ? -1 : 1)];
      if (event.key === "Tab" && next) this.#clicked(next);
    });
    span.replaceChildren(field);
    field.select();
  }

  async #copy() {
    try {
      await navigator.clipboard.writeText(FORMS[0].write(this.script).trim());
      say(this.status, "Copied");
    } catch {
      say(this.status, "The browser allows no copy; select the text instead.", "error");
    }
  }

  // Speakers: a turn for each change, with a colour and a name.

  #colour(speaker) {
    if (!this.#colours.has(speaker)) this.#colours.set(speaker, this.#colours.size);
    return `speaker-${this.#colours.get(speaker) % COLOURS}`;
  }

  // The paragraph of a turn, without words yet.
  #openTurn(box, segment) {
    const { speaker } = segment;
    this.script.speakers ??= {};
    this.script.speakers[speaker] ??= speaker;
    const name = this.script.speakers[speaker];
    const who = button(name, () => this.#name(speaker), { class: "who", "data-speaker": speaker, title: "Rename" });
    const play = button("", () => this.#play(segment.start, segment.end), { class: "play", "aria-label": `Play the turn of ${name} at ${seconds(segment.start)}` });
    const said = make("p", {});
    box.append(make("div", { class: `turn ${this.#colour(speaker)}` }, make("div", { class: "turn-head" }, play, who), said));
    return said;
  }

  // The field of a speaker's name.
  #name(speaker) {
    this.speakers.querySelector(`[data-speaker="${CSS.escape(speaker)}"] input`)?.select();
  }

  #rename(speaker, name) {
    this.script.speakers[speaker] = name;
    for (const who of this.text.querySelectorAll(`.who[data-speaker="${CSS.escape(speaker)}"]`)) {
      who.textContent = name;
      const play = who.previousElementSibling;
      play.setAttribute("aria-label", play.getAttribute("aria-label").replace(/of .* at/, `of ${name} at`));
    }
    // In place: the focus is among them.
    for (const row of this.speakers.children) {
      const merge = row.querySelector("select");
      if (row.dataset.speaker === speaker) merge.setAttribute("aria-label", `Merge ${name} with`);
      for (const option of merge.options) if (option.value === speaker) option.text = name;
    }
    this.#keep();
  }

  // All turns of one speaker become those of another.
  #merge(from, into) {
    for (const segment of this.script.segments) if (segment.speaker === from) segment.speaker = into;
    const [one, other] = [from, into].map((speaker) => this.script.speakers[speaker]);
    delete this.script.speakers[from];
    const { segments } = this.script;
    this.script.segments = [];
    this.#words = [];
    this.#spans.clear();
    this.#live.clear();
    this.text.replaceChildren();
    for (const segment of segments) this.addSegment(segment);
    this.#showSpeakers();
    say(this.status, `${one} and ${other} are one speaker`);
    this.#keep();
  }

  #showSpeakers() {
    // Live turns may have been of others before.
    const heard = new Set(this.script.segments.map(({ speaker }) => speaker));
    for (const speaker of Object.keys(this.script.speakers ?? {})) if (!heard.has(speaker)) delete this.script.speakers[speaker];
    const speakers = Object.entries(this.script.speakers ?? {});
    this.speakers.hidden = !speakers.length;
    this.speakers.replaceChildren(
      ...speakers.map(([id, name]) => {
        const field = make("input", { type: "text", value: name, maxlength: 64, "aria-label": `Name of speaker ${id}`, autocomplete: "off" });
        field.addEventListener("change", () => this.#rename(id, field.value.trim() || id));
        const merge = make("select", { "aria-label": `Merge ${name} with`, hidden: speakers.length < 2 }, new Option("same as …", ""));
        for (const [other, otherName] of speakers) if (other !== id) merge.append(new Option(otherName, other));
        merge.addEventListener("change", () => merge.value && this.#merge(id, merge.value));
        return make("div", { class: `speaker ${this.#colour(id)}`, "data-speaker": id }, field, merge);
      }),
    );
  }
}
