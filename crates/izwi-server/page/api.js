// Requests to this server: the key where it asks for one, errors with its own words, and WebSockets.

import { $ } from "./dom.js";

const KEPT = "izwi-key";
let key = sessionStorage.getItem(KEPT) ?? "";
let asking = null;

// An error of the server: `message` names what is wrong and the remedy.
export class ApiError extends Error {
  constructor(status, { message, code, param } = {}) {
    super(message ?? `the server answered ${status}`);
    Object.assign(this, { status, code, param });
  }
}

// Asks the user for the key, once for all requests that wait for it.
function askForKey(wasWrong) {
  asking ??= new Promise((resolve, reject) => {
    const [dialog, form, input] = [$("key-dialog"), $("key-form"), $("key-input")];
    $("key-why").textContent = wasWrong
      ? "That key was not accepted. Enter the API key of this server."
      : "Enter its API key. It is kept until this tab is closed.";
    input.value = "";
    const end = (given) => {
      form.onsubmit = dialog.onclose = $("key-cancel").onclick = null;
      asking = null;
      if (dialog.open) dialog.close();
      if (!given) return reject(new ApiError(401, { message: "This server needs its API key.", code: "invalid_api_key" }));
      key = given;
      sessionStorage.setItem(KEPT, key);
      resolve();
    };
    form.onsubmit = (event) => {
      event.preventDefault();
      end(input.value.trim());
    };
    $("key-cancel").onclick = () => end("");
    dialog.onclose = () => end("");
    dialog.showModal();
  });
  return asking;
}

// fetch() with the key. Throws ApiError unless the answer is a success.
export async function request(path, options = {}) {
  for (;;) {
    const used = key;
    const headers = { ...options.headers, ...(used && { authorization: `Bearer ${used}` }) };
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, { message: "The server cannot be reached.", code: "unreachable" });
    }
    if (response.ok) return response;
    if (response.status === 401) {
      // Another request may have asked meanwhile.
      if (used === key) await askForKey(used !== "");
      continue;
    }
    const body = await response.json().catch(() => ({}));
    throw new ApiError(response.status, body.error);
  }
}

export const getJson = async (path, options) => (await request(path, options)).json();

export const postJson = async (path, body) =>
  (await request(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) })).json();

// Opens a WebSocket. A ticket stands for the key, which browsers cannot send with a WebSocket.
export async function socket(path) {
  const url = new URL(path, location.href);
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  if (key) url.searchParams.set("ticket", (await postJson("/v1/tickets", {})).ticket);
  const opened = new WebSocket(url);
  opened.binaryType = "arraybuffer";
  await new Promise((resolve, reject) => {
    opened.onopen = resolve;
    // A browser does not tell why an upgrade was refused; a request that needs the key does.
    opened.onerror = () =>
      getJson("/v1/models").then(
        () => reject(new ApiError(0, { message: "The server refused the connection: it may be busy. Try again." })),
        reject,
      );
  });
  opened.onerror = null;
  return opened;
}

// The events of a streamed answer, each parsed. https://html.spec.whatwg.org/multipage/server-sent-events.html
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new ApiError(0, event.error);
      yield event;
    }
  }
}
