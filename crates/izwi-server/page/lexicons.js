// The lexicons of the page Speak: which are used for a text, new ones, deletion. docs/lexicons.md

import { getJson, postJson, request } from "./api.js";
import { $, button, fill, make, say, sayError } from "./dom.js";
import { languageName } from "./languages.js";
import { setting, setSetting } from "./settings.js";
import { state } from "./service.js";

const MAX_BYTES = 8_000_000;
const rows = new Map();
let lexicons = [];
let wanted = new Set(setting("lexicons", []));

// The names that the text is spoken with; none: as the server chooses.
export const chosen = () => lexicons.map(({ id }) => id).filter((id) => wanted.has(id));

function choose(id, isChosen) {
  if (isChosen) wanted.add(id);
  else wanted.delete(id);
  setSetting("lexicons", [...wanted]);
  summarise();
}

function summarise() {
  const names = chosen();
  say($("lexicons-chosen"), names.length ? names.join(", ") : lexicons.some(({ always }) => always) ? "those for every text" : "none");
}

async function remove(id) {
  if (!confirm(`Delete the lexicon ${id}? This cannot be undone.`)) return;
  try {
    await request(`/v1/lexicons/${encodeURIComponent(id)}`, { method: "DELETE" });
    say($("lexicons-status"), `${id} is deleted`);
    choose(id, false);
    await load();
  } catch (error) {
    sayError($("lexicons-status"), error);
  }
}

function row(lexicon) {
  const { id, description, language, always, voices, entry_count: count } = lexicon;
  const key = JSON.stringify(lexicon);
  if (rows.get(id)?.key !== key) {
    const box = make("input", { type: "checkbox", checked: wanted.has(id), onchange: ({ target }) => choose(id, target.checked) });
    const uses = always ? "every text" : voices.length ? `voices ${voices.join(", ")}` : "";
    const facts = [`${count} ${count === 1 ? "word" : "words"}`, language && languageName(language), description];
    const name = make("span", { class: "name" }, id);
    const about = make("span", { class: "about" }, facts.filter(Boolean).join(" · "));
    const label = make("label", { class: "check" }, box, make("span", {}, name, uses ? make("span", { class: "tag" }, uses) : "", make("br"), about));
    const actions = make("div", { class: "actions" }, button("Delete", () => remove(id), { "aria-label": `Delete ${id}` }));
    rows.set(id, { key, element: make("li", { "data-lexicon": id }, label, actions) });
  }
  return rows.get(id).element;
}

async function load() {
  try {
    ({ lexicons } = await getJson("/v1/lexicons"));
  } catch {
    // A server without a folder for them has none; that it cannot be reached is told elsewhere.
    lexicons = [];
  }
  const elements = lexicons.map(row);
  if (!elements.length) elements.push(make("li", { class: "soft" }, "None is saved yet."));
  fill($("lexicons-list"), elements);
  summarise();
}

async function add(event, overwrite = false) {
  event.preventDefault();
  const status = $("lexicons-status");
  const body = { name: $("lexicons-name").value.trim(), text: $("lexicons-text").value, always: $("lexicons-always").checked, overwrite };
  try {
    const saved = await postJson("/v1/lexicons", body);
    choose(saved.id, !body.always || wanted.size > 0);
    await load();
    const box = rows.get(saved.id).element.querySelector("input");
    box.checked = wanted.has(saved.id);
    say(status, `${saved.id} is saved with ${saved.entry_count} ${saved.entry_count === 1 ? "word" : "words"}`);
    $("lexicons-form").reset();
  } catch (error) {
    if (error.code === "lexicon_exists" && confirm(`A lexicon ${body.name} exists. Replace it?`)) return add(event, true);
    sayError(status, error);
  }
}

async function readFile({ target }) {
  const [file] = target.files;
  target.value = "";
  if (!file) return;
  if (file.size > MAX_BYTES) return say($("lexicons-status"), `${file.name} is larger than 8 MB: it is no lexicon.`, "error");
  $("lexicons-text").value = await file.text();
  const name = file.name.replace(/\.[a-z0-9]+$/i, "").toLowerCase().replace(/[^a-z0-9._-]+/g, "-").replace(/^[^a-z0-9]+/, "");
  if (!$("lexicons-name").value) $("lexicons-name").value = name.slice(0, 64);
  say($("lexicons-status"), `${file.name} is read; Save keeps it`);
}

export function start() {
  $("lexicons-form").addEventListener("submit", (event) => add(event));
  $("lexicons-file").addEventListener("change", readFile);
  let isLoaded = false;
  // Once the server answers, and whenever the list is opened.
  state.changed.addEventListener("change", () => {
    if (!isLoaded) load();
    isLoaded = true;
  });
  $("lexicons").addEventListener("toggle", () => $("lexicons").open && load());
}
