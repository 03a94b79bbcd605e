// Uses the web page of a running server in a headless Chromium, as a person does: by its labels, keys and looks.
//
// usage: page.mjs PART URL BROWSER RECORDING [NAME ...]
//
// PART `real` needs the default TTS model NAME 1 and the ASR model NAME 2, `key` a server with the key NAME 1, `voices` one
// whose model NAME 1 clones voices, `empty` one whose default model NAME 1 is not installed, `pull` one that can pull it
// besides, `converse` a chat model with long answers, `model` any chat model. RECORDING is the microphone. Pictures are written
// to the folder IZWI_PICTURES, if that is set. Exits with a stack trace at the first fault; prints one line for each check that
// passed.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";

// The packages are below `target/`, where Node.js does not look for them.
const require = createRequire(new URL("../../target/node/package.json", import.meta.url));
const { chromium } = require("playwright-core");
const AXE = await readFile(require.resolve("axe-core/axe.min.js"), "utf8");

const [part, url, program, recording, ...names] = process.argv.slice(2);
const pictures = process.env.IZWI_PICTURES;
const TABS = ["speak", "listen", "converse", "voices", "models", "engine"];
const DESKTOP = { viewport: { width: 1180, height: 860 }, colorScheme: "light" };
const PHONE = { viewport: { width: 390, height: 844 }, colorScheme: "dark", isMobile: true, hasTouch: true };
const WAIT = { timeout: 60_000 };

function passed(what) {
  console.log(`passed: ${what}`);
}

// A page, whose errors fail the test.
async function open(options = DESKTOP) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.on("pageerror", (error) => (failure ??= error));
  page.on("console", (message) => {
    // A refused request is a line of its own, and tested where it is expected.
    const isFault = message.type() === "error" && !message.text().startsWith("Failed to load resource");
    if (isFault && !message.text().includes("WebSocket")) failure ??= new Error(message.text());
  });
  page.on("request", (request) => {
    const to = new URL(request.url());
    if (to.protocol !== "blob:" && to.host !== new URL(url).host) failure ??= new Error(`foreign host ${to}`);
  });
  await page.addInitScript(() => {
    globalThis.shifted = 0;
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) if (!entry.hadRecentInput) globalThis.shifted += entry.value;
    }).observe({ type: "layout-shift", buffered: true });
  });
  await page.goto(url);
  return page;
}

const text = (page, id) => page.locator(`#${id}`).textContent();
const shows = (page, id, what) =>
  page.waitForFunction(([id, what]) => new RegExp(what).test(document.getElementById(id).textContent), [id, what], WAIT);

async function tab(page, name) {
  await page.getByRole("link", { name: name[0].toUpperCase() + name.slice(1), exact: true }).click();
  await page.locator(`#page-${name}`).waitFor();
}

async function picture(page, name) {
  if (pictures) await page.screenshot({ path: join(pictures, `${name}.png`), animations: "disabled", ...WAIT });
}

// No violation of the rules of axe-core, and nothing wider than the screen.
async function accessible(page, what) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 200)).join("; ")}`);
  assert.deepEqual(found, [], what);
  const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
  assert.ok(wide <= room, `${what} is ${wide} px wide on a screen of ${room}`);
}

// Every tab in both sizes and colours.
async function everywhere(state, names = TABS) {
  for (const [size, options] of [["desktop", DESKTOP], ["phone", PHONE]]) {
    const page = await open(options);
    await page.waitForFunction(() => document.getElementById("health").dataset.state !== "unknown", null, WAIT);
    for (const name of names) {
      await tab(page, name);
      // The charts have a point by then.
      if (name === "engine") await page.waitForFunction(() => document.getElementById("engine-uptime").textContent !== "–", null, WAIT);
      await accessible(page, `${state} ${name} ${size}`);
      if (state === "ready" || size === "phone") await picture(page, `${name}-${state}-${size}`);
    }
    const shifted = await page.evaluate(() => globalThis.shifted);
    assert.ok(shifted < 0.02, `the layout of ${state} ${size} shifts by ${shifted}`);
    await page.context().close();
  }
  passed(`axe finds nothing, and nothing moves or overflows: ${state}`);
}

// Records what the player renders, as 16-bit numbers. It renders the samples as they are, however few wait.
async function tap(page) {
  await page.evaluate(async () => {
    const { Player } = await import("/page/player.js");
    globalThis.rendered = [];
    Player.exact = true;
    Player.tap = (samples) => globalThis.rendered.push(...samples.map((sample) => Math.round(sample * 32768)));
  });
}

const played = (page) => page.evaluate(() => globalThis.rendered.splice(0));

// The samples of POST /v1/audio/speech.
async function overHttp(body) {
  const response = await fetch(new URL("/v1/audio/speech", url), {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ response_format: "pcm", sample_rate: 24_000, ...body }),
  });
  assert.equal(response.status, 200, await response.clone().text().catch(() => ""));
  const bytes = await response.arrayBuffer();
  return [...new Int16Array(bytes)];
}

async function speaks(page, [model]) {
  await tap(page);
  const input = "Nothing that you say here leaves your desk, Dr. Vale.";
  await page.getByLabel("Text", { exact: true }).fill(input);
  await page.getByText("Style, language, seed").click();
  await page.locator("#speak-seed").fill("7");
  await page.locator("#speak-speed").fill("1.25");
  assert.equal(await text(page, "speak-speed-value"), "1.25×");
  const voice = await page.getByLabel("Voice", { exact: true }).inputValue();
  await page.getByRole("button", { name: "Speak", exact: true }).click();
  const lit = new Set();
  while (!(await text(page, "speak-status")).startsWith("Done")) {
    const now = page.locator("#speak-reading .now");
    if (await now.count()) lit.add(await now.first().textContent().catch(() => ""));
    assert.notEqual(await page.locator("#speak-status").getAttribute("data-kind"), "error", await text(page, "speak-status"));
  }
  const heard = await played(page);
  const sent = await overHttp({ model, input, voice, seed: 7, speed: 1.25 });
  assert.equal(heard.length, sent.length);
  assert.deepEqual(heard, sent);
  passed(`the ${heard.length} samples that were played are those of POST /v1/audio/speech`);
  assert.ok([...lit].some((word) => input.includes(word)) && lit.size >= 3, `lit: ${[...lit]}`);
  assert.equal(await text(page, "speak-reading"), input);
  assert.equal(await page.locator("#speak-reading .past").count(), input.split(" ").length);
  passed("words light up while they are played");
  assert.match(await text(page, "speak-ttfa"), /^\d+ ms$/);
  assert.match(await text(page, "speak-rtf"), /^\d+\.\d+$/);
  assert.match(await text(page, "speak-underruns"), /^\d+$/);

  const [download] = await Promise.all([page.waitForEvent("download"), page.locator("#speak-save").click()]);
  const file = await readFile(await download.path());
  assert.deepEqual([...new Int16Array(file.buffer.slice(file.byteOffset + 44, file.byteOffset + file.length))], sent);
  passed("the WAV file has the same samples");

  const long = "The tide came in at a quarter past six. Gulls followed the last boat home, and the lamps went on one by one. ";
  await page.getByLabel("Text", { exact: true }).fill(long + long.trim());
  const options = page.getByText("Style, language, seed");
  await options.click();
  await page.getByRole("button", { name: "Speak", exact: true }).press("Enter");
  await page.locator("#speak-reading .past").nth(9).waitFor({ state: "attached", ...WAIT });
  await page.evaluate(() => scrollTo(0, 0));
  await picture(page, "speak-playing-desktop");
  await page.getByRole("button", { name: "Stop", exact: true }).press("Enter");
  // At once: without a turn of the server.
  assert.match(await text(page, "speak-status"), /^Stopped/);
  const stopped = (await played(page)).length;
  assert.ok(stopped > 0 && stopped < 24_000 * 15, `${stopped} samples`);
  passed("Stop interrupts, with the keyboard alone");

  await options.click();
  await page.locator("#speak-style").fill("Whisper.");
  await page.getByRole("button", { name: "Speak", exact: true }).click();
  await shows(page, "speak-status", "^Done: .* ignores instructions$");
  passed("what a model ignores is told");

  await warns(page);
  await holds(page);
  await page.locator("#speak-style").fill("");

  const written = await page.locator("#speak-text").inputValue();
  await page.locator("#speak-text").fill("too long ".repeat(1_000));
  await page.getByRole("button", { name: "Speak", exact: true }).click();
  await page.locator("#speak-status[data-kind=error]").waitFor(WAIT);
  assert.match(await text(page, "speak-status"), /4096/);
  await page.locator("#speak-text").fill(written);
  passed("an error of the server is shown with its words");
}

// What is said otherwise than it is written stays on the page, with a model that could speak it.
async function warns(page) {
  await page.getByLabel("Text", { exact: true }).fill('<emphasis>Ready</emphasis> 你好.');
  await page.getByRole("button", { name: "Speak", exact: true }).click();
  await shows(page, "speak-status", "^Done");
  const warning = await text(page, "speak-warning");
  for (const part of ["cannot pronounce '你好'", "markup has no effect", "the text has Chinese", "qwen3-tts"]) assert.ok(warning.includes(part), warning);
  await accessible(page, "warnings");
  await page.getByLabel("Text", { exact: true }).fill("Ready.");
  await page.getByRole("button", { name: "Speak", exact: true }).click();
  await shows(page, "speak-status", "^Done");
  assert.equal(await page.locator("#speak-warning").isVisible(), false);
  passed("what the model cannot say is told");
}

// A machine that is too slow says how long it waits, plays at once on request, and stops at once.
async function holds(page) {
  await page.routeWebSocket("**/v1/audio/speech/stream", (socket) => {
    const server = socket.connectToServer();
    server.onClose(() => {});
    server.onMessage((message) => {
      const is = (type) => typeof message === "string" && message.includes(`"${type}"`);
      // What has arrived whole needs no wait.
      if (!is("session.done")) socket.send(is("audio.start") ? JSON.stringify({ ...JSON.parse(message), prebuffer_ms: 900_000 }) : message);
    });
  });
  await page.getByLabel("Text", { exact: true }).fill("The tide came in at a quarter past six. ".repeat(90).trim());
  const now = page.getByRole("button", { name: "Play now" });
  const speak = page.getByRole("button", { name: "Speak", exact: true });
  await played(page);
  await speak.click();
  await shows(page, "speak-status", "^Waiting until it plays without gaps, (900|8\\d\\d) s$");
  await accessible(page, "a wait");
  await picture(page, "speak-waiting-desktop");
  assert.equal((await played(page)).length, 0, "nothing is played while it waits");
  await now.click();
  await shows(page, "speak-status", "^Speaking");
  await now.waitFor({ state: "hidden", ...WAIT });
  await page.waitForFunction(() => globalThis.rendered.length > 2400, null, WAIT);
  passed("a wait is told with its seconds, and Play now ends it");
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  assert.match(await text(page, "speak-status"), /^Stopped/);
  await speak.click();
  await shows(page, "speak-status", "^Waiting");
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  assert.match(await text(page, "speak-status"), /^Stopped/);
  assert.equal(await now.isVisible(), false);
  passed("Stop needs no answer of the server");
}

async function listens(page, [, model]) {
  await tab(page, "listen");
  await page.locator("#listen-model").selectOption(model);
  await page.setInputFiles("#listen-files", recording);
  const result = page.locator(".result").first();
  await result.getByText(/ s in /).waitFor(WAIT);
  assert.match(await result.locator(".words").textContent(), /ask what you can do for your country/);
  const saved = async (name) => {
    const [download] = await Promise.all([page.waitForEvent("download"), result.getByRole("button", { name }).click()]);
    return readFile(await download.path(), "utf8");
  };
  for (const name of ["SRT", "VTT"]) {
    const form = new FormData();
    form.append("file", new Blob([await readFile(recording)]), "recording.wav");
    form.append("model", model);
    form.append("response_format", name.toLowerCase());
    const response = await fetch(new URL("/v1/audio/transcriptions", url), { method: "POST", body: form });
    const [mine, servers] = [(await saved(name)).trim(), (await response.text()).trim()];
    // Lines of times apart, which are those of the words here and those of the segments there.
    const apart = (subtitles) => subtitles.replace(/[\d:.,]{9,} --> [\d:.,]{9,}/g, "TIMES");
    assert.equal(apart(mine), apart(servers), name);
    const times = (subtitles) => [...subtitles.matchAll(/(\d\d):(\d\d):(\d\d)[.,](\d{3})|(\d\d):(\d\d)[.](\d{3})/g)].map(([all]) =>
      all.split(":").reduce((sum, unit) => sum * 60 + Number(unit.replace(",", ".")), 0),
    );
    times(mine).forEach((time, at) => assert.ok(Math.abs(time - times(servers)[at]) < 1, `${name}: ${mine}\n${servers}`));
  }
  passed("a file is transcribed, and its subtitles are those of the server");
  const word = result.locator(".words [data-start]", { hasText: "country" }).first();
  const start = Number(await word.getAttribute("data-start"));
  assert.ok(start > 3 && start < 8, `country starts at ${start} s`);
  await word.click();
  await page.waitForFunction(() => document.querySelector(".result audio").currentTime > 3, null, WAIT);
  await result.locator(".words .now").first().waitFor(WAIT);
  await page.evaluate(() => document.querySelector(".result audio").pause());
  passed("a click on a word plays it, and it lights up");

  await page.getByRole("button", { name: "Record" }).click();
  const live = page.locator(".result").first();
  await page.waitForFunction(() => document.querySelectorAll(".result").length === 2, null, WAIT);
  await live.locator(".words [data-start]", { hasText: "country" }).first().waitFor(WAIT);
  await picture(page, "listen-live-desktop");
  await page.locator("#listen-record").press("Enter");
  await shows(page, "listen-status", "^Done");
  assert.match(await live.locator(".words").textContent(), /country/);
  const cue = await (async () => {
    const [download] = await Promise.all([page.waitForEvent("download"), live.getByRole("button", { name: "SRT" }).click()]);
    return readFile(await download.path(), "utf8");
  })();
  assert.match(cue, /^1\n00:00:\d\d,\d{3} --> 00:00:\d\d,\d{3}\n\S/);
  assert.ok(await live.locator("audio").evaluate((audio) => audio.src.startsWith("blob:")));
  passed("the microphone is transcribed live, with word times and subtitles");
}

async function manages(page, [model, listener]) {
  await tab(page, "models");
  const row = (id) => page.locator(`[data-model="${id}"]`);
  await row(model).getByText("loaded, default").waitFor(WAIT);
  assert.match(await row(model).textContent(), /in memory/);
  assert.equal(await row(model).getByRole("button").isVisible(), false, "a default model stays");
  assert.ok(await row(listener).isVisible());
  const other = "whisper-base";
  // It is installed, though this server did not offer it at its start: it is found, and a pull finds it complete.
  assert.equal(await page.evaluate((id) => fetch(`/v1/models/${id}`).then((answer) => answer.status), other), 200);
  const begun = await page.evaluate((id) => fetch(`/v1/models/${id}/pull`, { method: "POST" }).then((answer) => answer.status), other);
  assert.equal(begun, 202);
  await row(other).getByText("not loaded").waitFor(WAIT);
  await row(other).getByRole("button", { name: `Load ${other}` }).click();
  await row(other).getByText("loaded", { exact: true }).waitFor(WAIT);
  await row(other).getByRole("button", { name: `Unload ${other}` }).click();
  await row(other).getByText("not loaded").waitFor(WAIT);
  passed("a model is pulled, loaded and unloaded");

  // Progress as the server tells it; a test reaches no hub.
  const answer = await (await fetch(new URL("/v1/catalogue", url))).json();
  const pulled = answer.data.find(({ installed }) => !installed);
  await page.route("**/v1/catalogue", (route) => {
    const pull = { state: "running", file: "model.safetensors", done_bytes: 30_000_000, total_bytes: 120_000_000, message: null };
    const data = answer.data.map((entry) => (entry.id === pulled.id ? { ...entry, pull } : entry));
    return route.fulfill({ json: { ...answer, data } });
  });
  await row(pulled.id).getByText("model.safetensors: 30.0 MB of 120 MB").waitFor(WAIT);
  assert.equal(await row(pulled.id).getByRole("progressbar").evaluate((bar) => bar.value / bar.max), 0.25);
  await accessible(page, "a pull");
  await picture(page, "models-pulling-desktop");
  await page.unroute("**/v1/catalogue");
  passed("the progress of a pull is shown");
}

// The voices of a model are there before it is loaded.
async function lists(page) {
  const model = "kokoro-82m";
  const begun = await page.evaluate((id) => fetch(`/v1/models/${id}/pull`, { method: "POST" }).then((answer) => answer.status), model);
  assert.equal(begun, 202);
  await tab(page, "speak");
  await page.locator(`#speak-model option[value="${model}"]`).waitFor({ state: "attached", ...WAIT });
  const first = await page.locator("#speak-model").inputValue();
  await page.locator("#speak-model").selectOption(model);
  await page.locator('#speak-voice option[value="af_heart"]', { hasText: "en-US, female" }).waitFor({ state: "attached", ...WAIT });
  assert.equal(await page.locator("#speak-voice option").count(), 54);
  const state = await page.evaluate((id) => fetch(`/v1/models/${id}`).then((answer) => answer.json()), model);
  assert.equal(state.state, "unloaded");
  await page.locator("#speak-model").selectOption(first);
  passed("voices are listed before their model is loaded");
}

async function measures(page, [model]) {
  await tab(page, "engine");
  await shows(page, "engine-uptime", "\\d");
  const speech = overHttp({ model, input: "The engine is busy for a while. ".repeat(60), live: true });
  // A stream that plays has slack; the label of its chart tells it.
  await page.getByRole("img", { name: /^Slack: (?!–|nothing)/ }).waitFor(WAIT);
  await page.getByRole("img", { name: /^Steps: [1-9]/ }).waitFor(WAIT);
  await picture(page, "engine-busy-desktop");
  await speech;
  await page.getByRole("img", { name: /^Real-time factor: \d/ }).waitFor(WAIT);
  await page.getByRole("img", { name: /^Time to first audio: \d/ }).waitFor(WAIT);
  assert.match(await text(page, "engine-requests"), /^[1-9]/);
  passed("slack, steps, RTF and TTFA are drawn while the engine works");
}

const parts = {
  async real(page) {
    await page.waitForFunction(() => document.getElementById("health").dataset.state === "ok", null, WAIT);
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.className), "skip", "the first stop of Tab");
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "content");
    await speaks(page, names);
    await listens(page, names);
    await manages(page, names);
    await lists(page);
    await measures(page, names);
    await everywhere("ready");
  },

  async key(page) {
    const [key] = names;
    const dialog = page.getByRole("dialog", { name: "This server has a key" });
    await dialog.waitFor(WAIT);
    await accessible(page, "the key's dialog");
    await picture(page, "key-desktop");
    await page.getByLabel("API key").fill("a-wrong-key-of-some-length");
    await page.keyboard.press("Enter");
    await dialog.getByText("was not accepted").waitFor(WAIT);
    await page.getByLabel("API key").fill(key);
    await page.getByRole("button", { name: "Continue" }).click();
    await dialog.waitFor({ state: "hidden", ...WAIT });
    await page.waitForFunction(() => document.getElementById("speak-model").value, null, WAIT);
    await page.getByRole("button", { name: "Speak", exact: true }).click();
    await shows(page, "speak-status", "^Done");
    await page.reload();
    await page.waitForFunction(() => document.getElementById("speak-model").value, null, WAIT);
    assert.equal(await dialog.isVisible(), false, "the key is kept in the tab");
    passed("the key is asked for once, and opens HTTP and WebSockets");
  },

  async voices(page) {
    const [model] = names;
    await tab(page, "voices");
    await page.waitForFunction(() => document.getElementById("voices-model").value, null, WAIT);
    const make = page.getByRole("button", { name: "Make the voice" });
    await page.locator("#voices-name").fill("anna");
    await page.locator("#voices-record").click();
    await shows(page, "voices-chosen", "recording, [2-9] s");
    await page.locator("#voices-record").press("Enter");
    await shows(page, "voices-chosen", "^recorded");
    await make.click();
    const isUnchecked = () => page.locator("#voices-consent:invalid").count();
    assert.equal(await isUnchecked(), 1, "consent is required");
    assert.equal((await (await fetch(new URL("/v1/audio/voices", url))).json()).voices.some(({ id }) => id === "anna"), false);
    await page.getByLabel("has agreed").check();
    await page.getByLabel("Words of the recording").fill("And so, my fellow Americans.");
    await make.click();
    await shows(page, "voices-made", "anna is saved");
    const row = page.locator('[data-voice="anna"]');
    await row.waitFor(WAIT);
    await accessible(page, "a saved voice");
    await picture(page, "voices-saved-desktop");
    await tap(page);
    await page.getByLabel("What they say").fill("I speak.");
    await row.getByRole("button", { name: "Try" }).click();
    await shows(page, "voices-status", "^anna: \\d");
    // Without a seed the samples differ from request to request.
    assert.equal((await played(page)).length, (await overHttp({ model, voice: "anna", input: "I speak." })).length);
    page.once("dialog", (question) => question.accept());
    await row.getByRole("button", { name: "Delete" }).click();
    await row.waitFor({ state: "detached", ...WAIT });
    passed("a voice is recorded, named, tried and deleted, with consent");
  },

  // Four seconds of a sine, at the pace in which it is played and at once.
  async stretch(page) {
    // A click, without which there is no sound.
    await page.locator("h1, header").first().click();
    const [paced, atOnce] = await page.evaluate(async () => {
      const { Player, RATE } = await import("/page/player.js");
      const pieces = 40;
      const length = RATE / 10;
      const sine = (n) => 0.5 * Math.sin((2 * Math.PI * 155.5 * n) / RATE);
      const source = Float32Array.from({ length: pieces * length }, (_, n) => sine(n));
      const play = async (paceMs) => {
        const heard = [];
        Player.tap = (samples) => heard.push(...samples);
        const player = await Player.open();
        const done = new Promise((resolve) => (player.ondone = resolve));
        const begun = performance.now();
        for (let piece = 0; piece < pieces; piece += 1) {
          player.push(source.slice(piece * length, (piece + 1) * length));
          const leftMs = begun + (piece + 1) * paceMs - performance.now();
          if (leftMs > 0) await new Promise((resolve) => setTimeout(resolve, leftMs));
        }
        player.end();
        await done;
        player.close();
        const { played, addedMs } = player;
        const rises = heard.filter((sample, at) => at && heard[at - 1] < 0 && sample >= 0).length;
        const steepest = heard.reduce((most, sample, at) => (at ? Math.max(most, Math.abs(sample - heard[at - 1])) : most), 0);
        const isSource = heard.length === source.length && heard.every((sample, at) => sample === source[at]);
        return { played, added: (addedMs / 1000) * RATE, hz: (rises * RATE) / heard.length, steepest, heard: heard.length, isSource };
      };
      return [await play(100), await play(0)];
    });
    assert.ok(atOnce.isSource && atOnce.added === 0, JSON.stringify(atOnce));
    passed("with enough that waits the samples are played as they are");
    assert.equal(paced.played, 96_000);
    assert.equal(paced.heard, 96_000 + Math.round(paced.added));
    assert.ok(paced.added > 2_400 && paced.added <= 9_600, JSON.stringify(paced));
    assert.ok(Math.abs(paced.hz / 155.5 - 1) < 0.01 && paced.steepest < 0.025, JSON.stringify(paced));
    passed(`with little that waits ${Math.round(paced.added / 24)} ms were added to four seconds, at the same pitch and without a click`);
  },

  async empty(page) {
    const [model] = names;
    await page.locator("#speak-notice").getByText("No model that speaks is ready").waitFor(WAIT);
    assert.ok(await page.locator("#speak-go").isDisabled());
    await tab(page, "models");
    await page.getByRole("button", { name: `Pull ${model}` }).waitFor(WAIT);
    await everywhere("empty", ["speak", "listen", "converse", "voices", "models"]);
    passed("without a model the page says what to do");
  },

  async pull(page) {
    const [model] = names;
    await tab(page, "models");
    await page.getByRole("button", { name: `Pull ${model}` }).click();
    await page.getByText(`${model} is being pulled`).waitFor(WAIT);
    await page.getByRole("button", { name: `Load ${model}` }).waitFor({ timeout: 180_000 });
    passed("a model is pulled through the page");
    await tab(page, "speak");
    await page.waitForFunction(() => !document.getElementById("speak-go").disabled, null, WAIT);
    await tap(page);
    await page.getByRole("button", { name: "Speak", exact: true }).click();
    await shows(page, "speak-status", "^Done");
    assert.ok((await played(page)).length > 12_000, "half a second of speech");
    passed("the pulled model speaks");
  },

  async converse(page) {
    await tab(page, "converse");
    await page.waitForFunction(() => document.getElementById("converse-model").value, null, WAIT);
    await tap(page);
    await page.getByLabel("A message").fill("Good evening.");
    await page.keyboard.press("Enter");
    await shows(page, "converse-status", "The model speaks");
    await page.waitForFunction(() => globalThis.rendered.length > 2400, null, WAIT);
    assert.match(await text(page, "converse-ttfa"), /^\d+ ms$/);
    await page.locator(".bubble.user", { hasText: "Good evening." }).waitFor(WAIT);
    await page.getByRole("button", { name: "Be quiet" }).click();
    await page.locator(".bubble.model.cut").first().waitFor(WAIT);
    assert.equal(await text(page, "converse-interruptions"), "1");
    passed("a written message is answered aloud, and the answer can be silenced");
    await played(page);
    // The microphone goes on, so that each answer is interrupted by speech.
    await page.getByRole("button", { name: "Start talking" }).click();
    await page.waitForFunction(() => Number(document.getElementById("converse-interruptions").textContent) >= 2, null, WAIT);
    assert.ok((await played(page)).length > 0, "an answer was played before it was interrupted");
    assert.ok((await page.locator(".bubble.user").count()) >= 2);
    await accessible(page, "a conversation");
    await picture(page, "converse-talking-desktop");
    await page.getByRole("button", { name: "Stop talking" }).press("Enter");
    await page.getByRole("button", { name: "Start talking" }).waitFor(WAIT);
    passed("speech is answered, and interrupts the answer");
  },

  async model(page) {
    await tab(page, "converse");
    await page.waitForFunction(() => document.getElementById("converse-model").value, null, WAIT);
    await tap(page);
    // Answers of random weights may have no audio, and end anywhere.
    for (let turn = 1; !(await page.evaluate(() => globalThis.rendered.length)); turn += 1) {
      assert.ok(turn < 40, "no answer has audio");
      await page.getByLabel("A message").fill(`Message ${turn}.`);
      await page.keyboard.press("Enter");
      await page.locator(".bubble.user", { hasText: `Message ${turn}.` }).waitFor(WAIT);
      await page.waitForFunction(() => document.getElementById("converse-status").textContent !== "Thinking", null, WAIT);
      if ((await text(page, "converse-status")) === "The model speaks") await shows(page, "converse-status", "^$");
      assert.notEqual(await page.locator("#converse-status").getAttribute("data-kind"), "error", await text(page, "converse-status"));
    }
    assert.match(await text(page, "converse-ttfa"), /^\d+ ms$/);
    passed("the model's answers are played");
  },
};

let failure = null;
// Playwright wants a path.
const folders = process.env.PATH.split(delimiter);
const executablePath = [program, ...folders.map((folder) => join(folder, program))].find(existsSync);
const folder = await mkdtemp(join(tmpdir(), "izwi-page-"));
const browser = await chromium.launch({
  executablePath,
  downloadsPath: folder,
  args: [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
    `--use-file-for-fake-audio-capture=${recording}`,
  ],
});
try {
  await parts[part](await open());
  if (failure) throw failure;
  console.log(`passed: all of ${part}`);
} catch (error) {
  const [context] = browser.contexts();
  const [page] = context?.pages() ?? [];
  if (page) console.log(await page.locator("main").innerText().catch(() => ""));
  throw failure ?? error;
} finally {
  await browser.close();
  await rm(folder, { recursive: true, force: true });
}
