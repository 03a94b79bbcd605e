// The page Models: pull with progress, load, unload, memory.

import { postJson } from "./api.js";
import { $, bytes, make, say, sayError } from "./dom.js";
import { read, state } from "./service.js";

const TASKS = { tts: "speaks", asr: "listens", chat: "converses" };
const STATES = { ready: "loaded", unloaded: "not loaded", given_up: "given up" };
const rows = new Map();

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

// All models: those of the catalogue, and those that the server offers without one.
function all() {
  const known = new Map(state.catalogue.map((entry) => [entry.id, entry]));
  for (const model of state.models) {
    const entry = known.get(model.id) ?? { id: model.id, description: "", installed: true, tasks: model.tasks, bytes: 0 };
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
    bar: make("progress", { "aria-label": `Pull of ${id}`, hidden: true }),
    failed: make("p", { class: "failed", hidden: true }),
  };
  const body = make("div", {}, row.name, row.tag, row.about, row.facts);
  row.element = make("li", { "data-model": id }, body, make("div", { class: "actions" }, row.button), row.bar, row.failed);
  return row;
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
  const facts = [
    entry.tasks.map((task) => TASKS[task] ?? task).join(", "),
    entry.clones_voices && "clones voices",
    entry.languages?.slice(0, 6).join(" ") + (entry.languages?.length > 6 ? ` and ${entry.languages.length - 6} more` : ""),
    memory ? `${bytes(memory)} in memory` : entry.bytes ? `${bytes(entry.bytes)} on disk` : entry.download_bytes && `${bytes(entry.download_bytes)} to pull`,
    entry.licence,
  ];
  say(row.facts, facts.filter((fact) => fact && fact !== "undefined").join(" · "));

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

function fill(list, entries, empty) {
  const elements = entries.map(show);
  if (!elements.length) elements.push(make("li", { class: "soft" }, empty));
  // Rows stay where they are, so that the focus does.
  if (elements.length !== list.children.length || elements.some((element, at) => list.children[at] !== element)) {
    list.replaceChildren(...elements);
  }
}

function refresh() {
  const entries = all();
  const here = (entry) => entry.installed;
  fill($("models-installed"), entries.filter(here), state.known ? "None yet: pull one below." : "Reading …");
  const others = entries.filter((entry) => !here(entry));
  fill($("models-available"), others, state.catalogue.length ? "All models are installed." : "This server pulls no models.");
  const loaded = Object.values(state.health?.models ?? {}).reduce((sum, { memory_bytes: used = 0 }) => sum + used, 0);
  say($("models-memory"), loaded ? `Loaded models take ${bytes(loaded)} of memory.` : "");
}

// Whether something changes by itself, so that it is read more often.
export const isBusy = () =>
  state.catalogue.some(({ pull }) => pull?.state === "running") || state.models.some((model) => ["loading", "unloading"].includes(model.state));

export function start() {
  state.changed.addEventListener("change", refresh);
}
