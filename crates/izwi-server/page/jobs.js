// The page Jobs: books and long recordings, which the server works on also while no page is open. docs/jobs.md

import { events, getJson, request } from "./api.js";
import { $, button, bytes, choices, clock, fill, make, save, say, sayError } from "./dom.js";
import { models, state, voices } from "./service.js";

const BOOK = /\.(epub|md|markdown|html?|xhtml|txt|text)$/i;
const SPEECH = ["mp3", "opus", "flac", "wav"].map((value) => ({ value, label: value.toUpperCase() }));
const TRANSCRIPT = [
  { value: "text", label: "Text" },
  { value: "srt", label: "Subtitles, SRT" },
  { value: "vtt", label: "Subtitles, WebVTT" },
  { value: "verbose_json", label: "JSON with times" },
];
const rows = new Map();
const followed = new Map();
let isShown = false;

const isBook = () => BOOK.test($("jobs-file").files[0]?.name ?? "a.txt");

function showChoices() {
  const task = isBook() ? "tts" : "asr";
  choices($("jobs-model"), models(task).map(({ id }) => ({ value: id, label: id })), "none is ready");
  const own = task === "tts" ? voices($("jobs-model").value).map(({ id }) => ({ value: id, label: id })) : [];
  choices($("jobs-voice"), own.length ? [{ value: "", label: "the model's own" }, ...own] : [], "the model's own");
  choices($("jobs-format"), task === "tts" ? SPEECH : TRANSCRIPT, "");
}

function words({ status, progress, error }) {
  const { done, total, unit, remaining_s: left } = progress;
  const share = total ? `${Math.floor((100 * done) / total)} %` : "";
  if (status === "failed") return error.message;
  if (status === "completed") return unit === "seconds" ? clock(total) : `${total} characters`;
  if (status === "queued") return "waits for the jobs before it";
  return [share, left === null ? "" : `about ${clock(left)} left`].filter(Boolean).join(", ") || "begins";
}

async function download(job) {
  try {
    const response = await request(job.result.url);
    const name = /filename="([^"]+)"/.exec(response.headers.get("content-disposition") ?? "")?.[1];
    save(await response.blob(), name ?? job.id);
  } catch (error) {
    sayError($("jobs-status"), error);
  }
}

async function remove(job) {
  const isOver = job.status === "completed" || job.status === "failed";
  if (!isOver && !confirm("Stop this job and delete what is done of it?")) return;
  try {
    await request(`/v1/jobs/${job.id}`, { method: "DELETE" });
    say($("jobs-status"), isOver ? "The job is deleted" : "The job is stopped and deleted");
    await load();
  } catch (error) {
    sayError($("jobs-status"), error);
  }
}

function row(job) {
  const key = JSON.stringify(job);
  const known = rows.get(job.id);
  if (known?.key === key) return known.element;
  const begun = new Date(job.created_at * 1000).toLocaleString();
  const bar = make("progress", { max: job.progress.total ?? 1, value: job.progress.done, "aria-label": "Progress" });
  const about = [job.model, begun, job.result ? bytes(job.result.bytes) : ""].filter(Boolean).join(" · ");
  const text = make(
    "div",
    {},
    make("span", { class: "name" }, job.type === "speech" ? "Speech" : "Transcript"),
    make("span", { class: "tag" }, job.status),
    make("br"),
    make("span", { class: "about" }, `${about} · ${words(job)}`),
  );
  if (job.status === "running") text.append(make("br"), bar);
  const actions = make("div", { class: "actions" });
  if (job.status === "completed") actions.append(button("Download", () => download(job), { "aria-label": `Download ${job.id}` }));
  const label = job.status === "queued" || job.status === "running" ? "Cancel" : "Delete";
  actions.append(button(label, () => remove(job), { "aria-label": `${label} ${job.id}` }));
  const element = known?.element ?? make("li", { "data-job": job.id });
  element.replaceChildren(text, actions);
  element.dataset.status = job.status;
  rows.set(job.id, { key, element });
  return element;
}

// Shows a job as its events tell it, while the page is shown.
async function follow(id) {
  if (followed.has(id)) return;
  const leaving = new AbortController();
  followed.set(id, leaving);
  try {
    const response = await request(`/v1/jobs/${id}/events`, { signal: leaving.signal });
    for await (const { type, job } of events(response)) {
      if (type === "job.cancelled") break;
      row(job);
    }
  } catch (error) {
    // The list tells what is left of it.
    if (error.name === "AbortError") return;
  } finally {
    followed.delete(id);
  }
  if (isShown) load();
}

async function load() {
  let jobs = [];
  try {
    ({ data: jobs } = await getJson("/v1/jobs"));
    $("jobs-notice").hidden = true;
  } catch (error) {
    // A server that takes no jobs says so.
    say($("jobs-notice"), error.message);
    $("jobs-notice").hidden = false;
  }
  const elements = jobs.map(row);
  if (!elements.length) elements.push(make("li", { class: "soft" }, "There are none."));
  fill($("jobs-list"), elements);
  for (const { id, status } of jobs) if (status === "running") follow(id);
  // Those that wait are looked at with the first one that runs.
  const waits = jobs.some(({ status }) => status === "queued") && !jobs.some(({ status }) => status === "running");
  if (waits) setTimeout(() => isShown && load(), 1000);
}

async function begin(event) {
  event.preventDefault();
  const [file] = $("jobs-file").files;
  if (!file) return say($("jobs-status"), "Choose a book or a recording first.", "error");
  const form = new FormData();
  form.append("type", isBook() ? "speech" : "transcription");
  form.append("model", $("jobs-model").value);
  form.append("response_format", $("jobs-format").value);
  if (isBook() && $("jobs-voice").value) form.append("voice", $("jobs-voice").value);
  form.append("file", file);
  $("jobs-go").disabled = true;
  say($("jobs-status"), `sending ${file.name} (${bytes(file.size)})`);
  try {
    await request("/v1/jobs", { method: "POST", body: form });
    say($("jobs-status"), `${file.name} is queued: this page may be closed`);
    $("jobs-form").reset();
    showChoices();
    await load();
  } catch (error) {
    sayError($("jobs-status"), error);
  } finally {
    $("jobs-go").disabled = false;
  }
}

export function start() {
  $("jobs-form").addEventListener("submit", begin);
  $("jobs-file").addEventListener("change", showChoices);
  $("jobs-model").addEventListener("change", showChoices);
  state.changed.addEventListener("change", showChoices);
}

export function shown(is) {
  if (is === isShown) return;
  isShown = is;
  if (is) return load();
  followed.forEach((leaving) => leaving.abort());
}
