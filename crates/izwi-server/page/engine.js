// The page Engine: metrics and health, drawn while the page is shown.

import { getJson, request } from "./api.js";
import { Chart } from "./chart.js";
import { $, bytes, clock, factor, ms, say, sayError, seconds } from "./dom.js";

const PERIOD_MS = 1000;

const charts = {
  rtf: new Chart("Real-time factor", "Processing time over audio time of the requests that ended; below 1 is faster than real time.", factor, 1),
  ttfa: new Chart("Time to first audio", "Mean of the requests that began, as the server sees it.", ms),
  queue: new Chart("Requests", "Sequences that wait for admission, and those that run.", (value) => String(Math.round(value)), 1),
  slack: new Chart("Slack", "Audio that each live stream has in store before it would fall silent.", (value) => seconds(value / 1000)),
  blocks: new Chart("KV blocks", "Share of the cache that sequences hold, by model.", (value) => `${(value * 100).toFixed(0)} %`, 0.25),
  steps: new Chart("Steps", "Steps of the engines in a second.", (value) => String(Math.round(value)), 1),
};
let before = null;
let timer = null;

// The sums of the series of the text format, over their labels.
// https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
export function sums(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-z_]+)(?:\{[^}]*\})? (\S+)$/.exec(line);
    if (match) found.set(match[1], (found.get(match[1]) ?? 0) + Number(match[2]));
  }
  return found;
}

function draw(health, metrics) {
  const value = (name) => metrics.get(name) ?? 0;
  const since = (name) => (before ? value(name) - (before.metrics.get(name) ?? 0) : 0);
  // The mean of what a histogram counted since the last point.
  const mean = (name) => (since(`${name}_count`) > 0 ? since(`${name}_sum`) / since(`${name}_count`) : null);
  const loaded = Object.entries(health.models).filter(([, model]) => model.memory_bytes !== undefined);
  const total = (pick) => loaded.reduce((sum, [, model]) => sum + pick(model), 0);
  const first = mean("izwi_time_to_first_audio_seconds");
  const steps = total((model) => model.steps);

  charts.rtf.push({ "": mean("izwi_rtf") });
  charts.ttfa.push({ "": first === null ? null : first * 1000 });
  charts.queue.push({ waiting: total((model) => model.pending), running: total((model) => model.running) });
  const streams = loaded.flatMap(([id, model]) => model.streams.map((stream) => [`${id} ${stream.id}`, stream.slack_ms]));
  charts.slack.push(Object.fromEntries(streams));
  charts.blocks.push(Object.fromEntries(loaded.filter(([, model]) => model.kv.total_blocks > 1).map(([id, model]) => [id, model.kv.utilization])));
  charts.steps.push({ "": before ? Math.max(0, steps - before.steps) : 0 });

  $("engine-uptime").textContent = clock(health.uptime_s);
  $("engine-requests").textContent = String(value("izwi_requests_total"));
  $("engine-sessions").textContent = String(health.sessions_open);
  $("engine-audio").textContent = clock(value("izwi_audio_seconds_total"));
  $("engine-memory").textContent = bytes(total((model) => model.memory_bytes));
  before = { metrics, steps };
}

async function tick() {
  try {
    const [health, page] = await Promise.all([getJson("/health"), request("/metrics")]);
    draw(health, sums(await page.text()));
    say($("engine-status"), "");
  } catch (error) {
    sayError($("engine-status"), error);
  }
}

export function shown(isShown) {
  clearInterval(timer);
  timer = isShown ? setInterval(tick, PERIOD_MS) : null;
  if (isShown) tick();
}

export function start() {
  $("engine-charts").append(...Object.values(charts).map(({ element }) => element));
}
