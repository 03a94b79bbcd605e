// The history of what was spoken and transcribed, in this browser only: IndexedDB, which the server never sees.
// https://www.w3.org/TR/IndexedDB/

import { setting, setSetting } from "./settings.js";

// The oldest entries leave where there is more.
export const LIMITS = { entries: 200, bytes: 200_000_000, entryBytes: 50_000_000 };

const STORE = "entries";
let opened = null;

export const changed = new EventTarget();

export const isOn = () => setting("history", true) && Boolean(globalThis.indexedDB);
export const setOn = (isWanted) => setSetting("history", isWanted);

const ended = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

async function store(mode) {
  if (!opened) {
    const request = indexedDB.open("izwi", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id", autoIncrement: true });
    opened = ended(request);
    opened.catch(() => (opened = null));
  }
  return (await opened).transaction(STORE, mode).objectStore(STORE);
}

// What an entry takes, nearly.
export const sizeOf = ({ audio, ...rest }) => (audio?.size ?? 0) + JSON.stringify(rest).length;

// All entries, the newest first.
export async function all() {
  if (!globalThis.indexedDB) return [];
  const entries = await ended((await store("readonly")).getAll());
  return entries.reverse();
}

async function prune() {
  let [count, bytes] = [0, 0];
  for (const entry of await all()) {
    count += 1;
    bytes += sizeOf(entry);
    if (count > LIMITS.entries || bytes > LIMITS.bytes) await ended((await store("readwrite")).delete(entry.id));
  }
}

// Keeps an entry: {kind, title, seconds, audio, …}. One without an `id` is new. Returns its id; null where the history is off
// or the browser refuses. Sound of more than `entryBytes` is left out.
export async function add(entry) {
  if (!isOn()) return null;
  const kept = { at: Date.now(), ...entry };
  if (kept.audio?.size > LIMITS.entryBytes) kept.audio = null;
  try {
    const id = await ended((await store("readwrite")).put(kept));
    await prune();
    changed.dispatchEvent(new Event("change"));
    return id;
  } catch {
    // A full disk or a private window: the page works without a history.
    return null;
  }
}

export async function erase(id) {
  await ended((await store("readwrite")).delete(id));
  changed.dispatchEvent(new Event("change"));
}

export async function eraseAll() {
  await ended((await store("readwrite")).clear());
  changed.dispatchEvent(new Event("change"));
}
