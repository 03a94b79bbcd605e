// What the user has typed and chosen, kept in this browser across reloads.

import { $ } from "./dom.js";

const KEPT = "izwi-settings";

function read() {
  try {
    return JSON.parse(localStorage.getItem(KEPT)) ?? {};
  } catch {
    return {};
  }
}

const settings = read();

export const setting = (name, otherwise) => settings[name] ?? otherwise;

export function setSetting(name, value) {
  settings[name] = value;
  try {
    localStorage.setItem(KEPT, JSON.stringify(settings));
  } catch {
    // A browser without storage, or a full one: the settings last until the page is closed.
  }
}

// Sets the value of a field as if the user had.
export function setField(element, value) {
  if (element.type === "checkbox") element.checked = value;
  else {
    // The options of a select may come later.
    element.dataset.wanted = value;
    element.value = value;
  }
  element.dispatchEvent(new Event(element.tagName === "SELECT" ? "change" : "input"));
}

// Restores the fields of these ids, and keeps what becomes of them.
export function remember(...ids) {
  for (const id of ids) {
    const element = $(id);
    const keep = () => {
      if (element.tagName === "SELECT") element.dataset.wanted = element.value;
      setSetting(id, element.type === "checkbox" ? element.checked : element.value);
    };
    if (id in settings) setField(element, settings[id]);
    element.addEventListener(element.tagName === "SELECT" || element.type === "checkbox" ? "change" : "input", keep);
  }
}
