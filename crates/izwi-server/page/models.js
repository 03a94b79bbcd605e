// The page Models: search, pull with progress, load, unload, delete, memory.

import { postJson, request } from "./api.js";
import { $, bytes, fill, make, say, sayError } from "./dom.js";
import { languageName } from "./languages.js";
import { read, state } from "./service.js";

const TASKS = { tts: "speaks", asr: "listens", chat: "converses", diarize: "tells speakers apart", turn: "finds ends of turns" };
// Plain words for the states of the API.
const STATES = {
  ready: "loaded",
  unloaded: "not loaded",
  loading: "loading",
  unloading: "unloading",
  failed: "failed to load",
  restarting: "starting again",
  given_up: "given up",
  draining: "finishing",
  stopped: "stopped",
  dead: "stopped by a fault",
};
const SHOWN_LANGUAGES = 4;
const FILTERS = {
  all: () => true,
  loaded: ({ offered }) => offered?.state === "ready",
  tts: ({ tasks }) => tasks.includes("tts"),
  asr: ({ tasks }) => tasks.includes("asr"),
  chat: ({ tasks }) => tasks.includes("chat"),
  clones: (entry) => entry.clones_voices,
};
const rows = new Map();
let deleting = null;

async function act(id, action, done) {
  say($("models-status"), `${action} ${id} …`);
  const row = rows.get(id);
  row.button.disabled = true;
  try {
    await postJson(`/v1/models/${encodeURIComponent(id)}/${action}`, {});
    say($("models-status"), done);
  } catch (error) {
    sayError($("models-status"), error);
  }
  row.button.disabled = false;
  await read().catch(() => {});
}

// Asks for the name of the model before its files are deleted.
function askToDelete(entry) {
  deleting = entry.id;
  say($("delete-what"), `${entry.id} leaves this machine${entry.bytes ? `, and ${bytes(entry.bytes)} are free` : ""}. It can be pulled again.`);
  $("delete-name").value = "";
  $("delete-name").placeholder = entry.id;
  $("delete-go").disabled = true;
  $("delete-dialog").showModal();
}

async function remove(event) {
  event.preventDefault();
  const id = deleting;
  if ($("delete-name").value.trim() !== id) return;
  $("delete-dialog").close();
  say($("models-status"), `Deleting ${id} …`);
  try {
    await request(`/v1/models/${encodeURIComponent(id)}`, { method: "DELETE" });
    say($("models-status"), `${id} is deleted`);
  } catch (error) {
    sayError($("models-status"), error);
  }
  await read().catch(() => {});
}

// All models: those of the catalogue, and those that the server offers without one.
function all() {
  const known = new Map(state.catalogue.map((entry) => [entry.id, entry]));
  for (const model of state.models) {
    const entry = known.get(model.id) ?? { id: model.id, description: "", installed: true, tasks: model.tasks, bytes: 0, isOwn: true };
    known.set(model.id, { ...entry, offered: model });
  }
  return [...known.values()].sort((a, b) => a.id.localeCompare(b.id));
}

function newRow(id) {
  const row = {
    name: make("span", { class: "name" }, id),
    tag: make("span", { class: "tag" }),
    about: make("p", { class: "about" }),
    facts: make("p", { class: "about" }),
    button: make("button", { type: "button", class: "slim" }),
    remove: make("button", { type: "button", class: "slim", "aria-label": `Delete ${id}` }, "Delete"),
    bar: make("progress", { "aria-label": `Pull of ${id}`, hidden: true }),
    failed: make("p", { class: "failed", hidden: true }),
  };
  const body = make("div", {}, row.name, row.tag, row.about, row.facts);
  row.element = make("li", { "data-model": id }, body, make("div", { class: "actions" }, row.button, row.remove), row.bar, row.failed);
  return row;
}

function languagesOf({ languages = [] }) {
  const names = languages.filter((code) => code !== "mul").map(languageName);
  const more = names.length - SHOWN_LANGUAGES;
  return names.slice(0, SHOWN_LANGUAGES).join(", ") + (more > 0 ? ` and ${more} more languages` : "");
}

function show(entry) {
  const { id, offered, pull } = entry;
  const row = rows.get(id) ?? newRow(id);
  rows.set(id, row);
  const health = state.health?.models[id];
  const memory = health?.memory_bytes;
  const isPulling = pull?.state === "running";
  say(row.tag, offered ? (STATES[offered.state] ?? offered.state) : entry.installed ? "installed" : "");
  row.tag.dataset.state = offered?.state ?? "";
  row.tag.hidden = !row.tag.textContent;
  say(row.about, entry.description);
  row.about.hidden = !entry.description;
  const facts = [
    entry.tasks.map((task) => TASKS[task] ?? task).join(", "),
    entry.clones_voices && "clones voices",
    languagesOf(entry),
    entry.bytes ? `${bytes(entry.bytes)} on disk` : entry.download_bytes && `${bytes(entry.download_bytes)} to pull`,
    memory && `${bytes(memory)} in memory`,
    entry.licence,
  ];
  say(row.facts, facts.filter(Boolean).join(" · "));

  const isLoaded = offered?.state === "ready";
  const busy = ["loading", "unloading", "restarting"].includes(offered?.state);
  // What another program installed is offered once it is pulled here, which finds it complete.
  const isMissing = !entry.installed || !offered;
  const [label, action, done] = isMissing
    ? ["Pull", "pull", `${id} is being pulled`]
    : isLoaded
      ? ["Unload", "unload", `${id} is unloaded`]
      : ["Load", "load", `${id} is loaded`];
  say(row.button, label);
  row.button.className = action === "pull" ? "slim primary" : "slim";
  row.button.setAttribute("aria-label", `${label} ${id}`);
  row.button.onclick = () => act(id, action, done);
  row.button.hidden = isPulling || busy || (isLoaded && offered.default);
  row.remove.hidden = !entry.installed || entry.isOwn || isPulling || busy || !offered || offered.default;
  row.remove.onclick = () => askToDelete(entry);
  if (isLoaded && offered.default) say(row.tag, "loaded, default");

  row.bar.hidden = !isPulling;
  if (pull?.total_bytes) {
    row.bar.max = pull.total_bytes;
    row.bar.value = pull.done_bytes;
  } else row.bar.removeAttribute("value");
  const note = isPulling ? (pull.file ? `${pull.file}: ${bytes(pull.done_bytes)} of ${bytes(pull.total_bytes)}` : (pull.message ?? "connecting")) : "";
  const failure = pull?.state === "failed" ? pull.message : offered?.state === "failed" ? health?.reason : null;
  row.failed.hidden = !note && !failure;
  row.failed.className = failure ? "failed" : "about";
  say(row.failed, failure ?? note);
  return row.element;
}

// Whether a model has all the words of the search, in its name, description, tasks or languages.
function has(entry, words) {
  const tasks = entry.tasks.map((task) => TASKS[task] ?? task);
  const languages = (entry.languages ?? []).flatMap((code) => [code, languageName(code)]);
  const text = [entry.id, entry.description, entry.licence, ...tasks, ...languages].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

function list(element, entries, empty) {
  const elements = entries.map(show);
  if (!elements.length) elements.push(make("li", { class: "soft" }, empty));
  fill(element, elements);
}

function refresh() {
  const words = $("models-search").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const fits = FILTERS[$("models-filter").value];
  const isNarrowed = words.length > 0 || fits !== FILTERS.all;
  const entries = all().filter((entry) => has(entry, words) && fits(entry));
  const here = (entry) => entry.installed;
  const none = "No model fits the search.";
  list($("models-installed"), entries.filter(here), isNarrowed ? none : state.known ? "None yet: pull one below." : "Reading …");
  const others = entries.filter((entry) => !here(entry));
  list($("models-available"), others, isNarrowed ? none : state.catalogue.length ? "All models are installed." : "This server pulls no models.");
  const loaded = Object.values(state.health?.models ?? {}).reduce((sum, { memory_bytes: used = 0 }) => sum + used, 0);
  const taken = state.catalogue.reduce((sum, { bytes: size }) => sum + size, 0);
  const facts = [taken && `Installed models take ${bytes(taken)} on disk`, loaded && `loaded ones ${bytes(loaded)} of memory`].filter(Boolean);
  say($("models-memory"), facts.length ? `${facts.join(", ")}.` : "");
}

// Whether something changes by itself, so that it is read more often.
export const isBusy = () =>
  state.catalogue.some(({ pull }) => pull?.state === "running") || state.models.some((model) => ["loading", "unloading"].includes(model.state));

export function start() {
  $("models-search").addEventListener("input", refresh);
  $("models-filter").addEventListener("change", refresh);
  $("delete-name").addEventListener("input", ({ target }) => ($("delete-go").disabled = target.value.trim() !== deleting));
  $("delete-form").addEventListener("submit", remove);
  $("delete-cancel").addEventListener("click", () => $("delete-dialog").close());
  state.changed.addEventListener("change", refresh);
}
