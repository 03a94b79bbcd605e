// The page History: what was spoken and transcribed in this browser; open again, export, erase.

import * as archive from "./archive.js";
import { $, button, bytes, clock, fill, make, save, say, sayError } from "./dom.js";
import { json, textOf } from "./captions.js";
import * as listen from "./listen.js";
import * as speak from "./speak.js";

const OPENERS = { speech: { page: "speak", open: speak.open, label: "spoken" }, transcript: { page: "listen", open: listen.open, label: "transcribed" } };
const rows = new Map();
let isShown = false;

const dataUrl = (blob) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });

// An entry as JSON, its sound as a data URL.
async function exported({ id: _, audio, ...entry }) {
  return JSON.stringify({ ...entry, at: new Date(entry.at).toISOString(), audio: audio ? await dataUrl(audio) : null });
}

async function exportOne(entry) {
  const stem = entry.title.replace(/\.[a-z0-9]+$/i, "").replace(/[^\p{L}\p{N}._ -]+/gu, "").trim().slice(0, 40) || entry.kind;
  if (entry.kind === "transcript") return save(new Blob([json(entry.script)], { type: "application/json" }), `${stem}.json`);
  save(new Blob([await exported(entry)], { type: "application/json" }), `${stem}.json`);
}

async function exportAll() {
  try {
    const parts = ["[\n"];
    // One at a time, so that not all sound is in memory as text at once.
    for (const entry of await archive.all()) parts.push(new Blob([parts.length > 1 ? ",\n" : "", await exported(entry)]));
    save(new Blob([...parts, "\n]\n"], { type: "application/json" }), "izwi-history.json");
  } catch (error) {
    sayError($("history-status"), error);
  }
}

async function openEntry(entry) {
  const { page, open } = OPENERS[entry.kind];
  location.hash = `#${page}`;
  try {
    await open(entry);
  } catch (error) {
    sayError($(`${page}-status`), error);
  }
}

function row(entry) {
  const key = `${entry.id} ${entry.changed ?? 0} ${entry.title}`;
  if (!rows.has(key)) {
    const when = new Date(entry.at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
    const facts = [when, entry.seconds && clock(entry.seconds), bytes(archive.sizeOf(entry)), entry.audio ? "" : "without its sound"];
    const short = entry.title.length > 60 ? `${entry.title.slice(0, 60)}…` : entry.title;
    const actions = [
      button("Open", () => openEntry(entry), { "aria-label": `Open ${short}` }),
      button("Export", () => exportOne(entry), { "aria-label": `Export ${short}` }),
      button("Erase", () => archive.erase(entry.id), { "aria-label": `Erase ${short}` }),
    ];
    const name = make("p", { class: "name clip" }, entry.title);
    const about = make("p", { class: "about" }, make("span", { class: "tag first" }, OPENERS[entry.kind].label), facts.filter(Boolean).join(" · "));
    rows.set(key, make("li", { "data-entry": entry.id }, make("div", {}, name, about), make("div", { class: "actions" }, ...actions)));
  }
  return rows.get(key);
}

async function refresh() {
  if (!isShown) return;
  let entries;
  try {
    entries = await archive.all();
  } catch {
    return say($("history-status"), "This browser keeps no history for this page.", "error");
  }
  const wanted = $("history-search").value.trim().toLowerCase();
  const found = entries.filter(({ title, text, script }) => !wanted || [title, text, ...(script?.segments ?? []).map(textOf)].join(" ").toLowerCase().includes(wanted));
  const elements = found.map(row);
  if (!elements.length) elements.push(make("li", { class: "soft" }, entries.length ? "Nothing has these words." : archive.isOn() ? "What is spoken and transcribed from now on appears here." : "The history is off."));
  fill($("history-list"), elements);
  for (const [key, element] of rows) if (!elements.includes(element)) rows.delete(key);
  const taken = entries.reduce((sum, entry) => sum + archive.sizeOf(entry), 0);
  say($("history-room"), `${entries.length} of at most ${archive.LIMITS.entries} entries, ${bytes(taken)} of at most ${bytes(archive.LIMITS.bytes)}; the oldest leave first.`);
  for (const id of ["history-export", "history-erase"]) $(id).disabled = !entries.length;
}

export function shown(isNow) {
  isShown = isNow;
  refresh();
}

export function start() {
  const box = $("history-on");
  box.checked = archive.isOn();
  box.addEventListener("change", () => {
    archive.setOn(box.checked);
    say($("history-status"), box.checked ? "" : "Nothing more is kept. What is there stays until it is erased.");
    refresh();
  });
  $("history-search").addEventListener("input", refresh);
  $("history-export").addEventListener("click", exportAll);
  $("history-erase").addEventListener("click", () => confirm("Erase the whole history of this browser? This cannot be undone.") && archive.eraseAll());
  archive.changed.addEventListener("change", refresh);
}
