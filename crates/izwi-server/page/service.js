// What the server has: its models, voices and health. One copy for all pages, fetched by main.js.

import { ApiError, getJson } from "./api.js";
import { bytes, make } from "./dom.js";

// `known` is true once the models were read. `changed` fires after each read.
export const state = { known: false, models: [], voices: [], health: null, catalogue: [], changed: new EventTarget() };

// A model in one of these states takes no requests until something is done.
const FAILED = ["failed", "given_up", "dead", "stopped"];

// The models with a task that can be used, the default one first.
export const models = (task) =>
  state.models
    .filter((model) => model.tasks.includes(task) && !FAILED.includes(model.state))
    .sort((a, b) => Number(b.default) - Number(a.default) || a.id.localeCompare(b.id));

export const has = (task) => models(task).length > 0;

// The languages of a model as far as known: as it tells once it is loaded, as the catalogue tells before.
export function languages(id) {
  const own = state.models.find((model) => model.id === id)?.languages ?? [];
  return own.length ? own : (state.catalogue.find((entry) => entry.id === id)?.languages ?? []);
}

// The voices that a model accepts, loaded or not.
export const voices = (model) => state.voices.filter((voice) => voice.models.includes(model));

// What is known of a voice, in a few words.
export const facts = ({ owned_by: owner, language, gender }) =>
  owner === "user" ? "yours" : [language === "mul" ? "every language" : language, gender].filter(Boolean).join(", ");

// The smallest model with a property that can be pulled; null where none is known.
export function suggestion(fits) {
  const known = state.catalogue.filter((entry) => !entry.installed && fits(entry));
  const size = (entry) => entry.download_bytes ?? Infinity;
  return known.sort((a, b) => size(a) - size(b) || a.id.localeCompare(b.id))[0] ?? null;
}

// Tells in `notice` that no model of a kind is there, and which one could be; hides it where one is.
export function tellMissing(notice, kind, isThere, fits) {
  notice.hidden = !state.known || isThere;
  if (notice.hidden) return;
  const found = suggestion(fits);
  const size = found?.download_bytes ? ` (${bytes(found.download_bytes)})` : "";
  const hint = found ? `, for instance ${found.id}${size}.` : ".";
  const text = `No model that ${kind} is ready. Pull one${hint}`;
  if (notice.textContent !== text) notice.replaceChildren(`No model that ${kind} is ready. `, make("a", { href: "#models" }, "Pull one"), hint);
}

// Reads everything again. An error is one of the server, or of the connection.
export async function read() {
  const [listed, voiced, health, catalogue] = await Promise.all([
    getJson("/v1/models"),
    getJson("/v1/audio/voices"),
    getJson("/health"),
    getJson("/v1/catalogue"),
  ]);
  Object.assign(state, { known: true, models: listed.data, voices: voiced.voices, health, catalogue: catalogue.data });
  state.changed.dispatchEvent(new Event("change"));
}

export { ApiError };
