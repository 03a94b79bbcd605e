// The web page: its pages by the fragment of the address, and the state of the server, read again every few seconds.

import { $, say } from "./dom.js";
import { ApiError, read, state } from "./service.js";
import * as converse from "./converse.js";
import * as engine from "./engine.js";
import * as history from "./history.js";
import * as jobs from "./jobs.js";
import * as listen from "./listen.js";
import * as models from "./models.js";
import { keepForOffline } from "./offline.js";
import * as speak from "./speak.js";
import * as voices from "./voices.js";

const pages = { speak, listen, converse, voices, models, jobs, history, engine };
const READ_MS = 5000;
const BUSY_MS = 700;

function show() {
  const wanted = location.hash.slice(1);
  // The skip link and the like are no pages: the one that is shown stays.
  if (wanted && !pages[wanted] && document.querySelector("nav [aria-current]")) return;
  const name = pages[wanted] ? wanted : "speak";
  for (const [id, page] of Object.entries(pages)) {
    $(`page-${id}`).hidden = id !== name;
    page.shown?.(id === name);
  }
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${$(`${name}-title`).textContent} – Izwi`;
}

function showHealth() {
  const { status, reason } = state.health;
  const words = { ok: "ready", loading: "loading", degraded: "not ready", draining: "shutting down" };
  say($("health"), words[status] ?? status);
  $("health").dataset.state = status;
  $("health").title = reason ?? "";
}

async function watch() {
  for (;;) {
    try {
      await read();
    } catch (error) {
      const away = error instanceof ApiError && error.status === 401 ? "no key" : "not reachable";
      say($("health"), away);
      $("health").dataset.state = "away";
      $("health").title = error.message;
    }
    document.body.dataset.ready = "";
    const isSoon = models.isBusy() || state.health?.status === "loading";
    await new Promise((resolve) => setTimeout(resolve, isSoon ? BUSY_MS : READ_MS));
  }
}

for (const page of Object.values(pages)) page.start();
state.changed.addEventListener("change", showHealth);
addEventListener("hashchange", () => {
  show();
  if (pages[location.hash.slice(1)]) scrollTo(0, 0);
});
show();
watch();
keepForOffline();
