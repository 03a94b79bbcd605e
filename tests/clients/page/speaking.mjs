// The page Speak.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";

import { WAIT, accessible, overHttp, passed, picture, played, reload, shows, tab, tap, text, url } from "./harness.mjs";

export async function speaks(page, [model]) {
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

  await replays(page, sent);
  await downloads(page);
  await remembers(page, { voice, input });
  await tap(page);

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

// What was generated is played, paused and sought, and nothing is asked of the server for it.
async function replays(page, sent) {
  let asked = 0;
  const count = (request) => new URL(request.url()).pathname.startsWith("/v1/audio/speech") && (asked += 1);
  page.on("request", count);
  page.on("websocket", () => (asked += 1));
  const slider = page.getByRole("slider", { name: "Position in the speech" });
  const at = async () => Number(await slider.getAttribute("aria-valuenow"));
  const heard = [];
  const hear = async (length) => {
    await page.waitForFunction((length) => globalThis.rendered.length >= length, length - heard.length, WAIT);
    heard.push(...(await played(page)));
  };
  await played(page);
  await page.getByRole("button", { name: "Play", exact: true }).click();
  await hear(2_400);
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByRole("button", { name: "Play", exact: true }).waitFor(WAIT);
  // What was on its way when it was paused.
  await page.waitForTimeout(200);
  heard.push(...(await played(page)));
  const paused = heard.length;
  await page.waitForTimeout(300);
  assert.equal((await played(page)).length, 0, "a pause is silent");
  assert.ok(paused < sent.length, "it was paused before its end");
  await page.getByRole("button", { name: "Play", exact: true }).press("Enter");
  await hear(sent.length);
  assert.deepEqual(heard, sent);
  passed("what was generated is played again and paused, sample by sample");

  await slider.focus();
  await page.keyboard.press("Home");
  assert.equal(await at(), 0);
  await page.keyboard.press("ArrowRight");
  await page.waitForFunction(() => document.getElementById("speak-wave").getAttribute("aria-valuenow") === "2.00", null, WAIT);
  await page.keyboard.press(" ");
  heard.length = 0;
  await hear(sent.length - 48_000);
  assert.deepEqual(heard.slice(-(sent.length - 48_000)), sent.slice(48_000));
  passed("the keyboard seeks: what follows is played");

  await page.getByRole("button", { name: "Play", exact: true }).waitFor(WAIT);
  await played(page);
  await page.locator("#speak-reading span").nth(3).click();
  const word = await at();
  assert.ok(word > 0.2, `the fourth word is at ${word} s`);
  const { x, y, width, height } = await slider.boundingBox();
  await page.mouse.click(x + width / 4, y + height / 2);
  assert.ok(Math.abs((await at()) - word) > 0.01 && (await at()) > 0.2, `a click is at ${await at()} s`);
  assert.equal((await played(page)).length, 0, "what is silent stays silent");
  assert.equal(asked, 0, "nothing is generated again");
  page.off("request", count);
  passed("a click on the waveform or on a word seeks");
}

// Bytes with which a file of a format begins; subtitles in full.
const BEGINNINGS = { wav: /^RIFF/, mp3: /^(ID3|\xff)/, opus: /^OggS/, flac: /^fLaC/, srt: /^1\n00:00:00,\d{3} --> [^]*Nothing that you say/, vtt: /^WEBVTT\n\n00:00:00\.\d{3} --> [^]*Nothing that/ };

// Every format of the server, of the audio that is there.
async function downloads(page) {
  const document = await (await fetch(new URL("/openapi.json", url))).json();
  const offered = document.components.schemas.SpeechRequest.properties.response_format.enum.filter(Boolean);
  const formats = await page.locator("#speak-format option").evaluateAll((options) => options.map(({ value }) => value));
  assert.deepEqual([...formats].sort(), [...offered, "srt", "vtt"].sort());
  let generated = 0;
  const count = (request) => new URL(request.url()).pathname === "/v1/audio/speech" && (generated += 1);
  page.on("request", count);
  for (const format of formats) {
    await page.locator("#speak-format").selectOption(format);
    const [download] = await Promise.all([page.waitForEvent("download"), page.locator("#speak-save").click()]);
    assert.equal(download.suggestedFilename(), `speech.${format}`);
    const file = await readFile(await download.path(), "latin1");
    assert.ok(file.length > 60, `${format}: ${file.length} bytes`);
    if (BEGINNINGS[format]) assert.match(file, BEGINNINGS[format], format);
  }
  assert.equal(generated, 0);
  page.off("request", count);
  await page.locator("#speak-format").selectOption("wav");
  passed(`${formats.join(", ")} are saved of what was generated once`);
}

// Text and settings come back after a reload, and what was spoken from the history.
async function remembers(page, { voice, input }) {
  await page.locator("#speak-speed").fill("1.35");
  await reload(page);
  await page.waitForFunction(() => document.getElementById("speak-model").value, null, WAIT);
  assert.equal(await page.locator("#speak-text").inputValue(), input);
  assert.equal(await page.locator("#speak-voice").inputValue(), voice);
  assert.equal(await page.locator("#speak-seed").inputValue(), "7");
  assert.equal(await text(page, "speak-speed-value"), "1.35×");
  passed("text, voice and settings survive a reload");
  await page.getByText("Style, language, seed").click();

  await tap(page);
  await tab(page, "history");
  const entry = page.locator("#history-list li", { hasText: input }).first();
  await entry.getByText("spoken").waitFor(WAIT);
  await entry.getByRole("button", { name: "Open" }).click();
  await page.locator("#page-speak").waitFor(WAIT);
  await shows(page, "speak-status", "From the history");
  assert.equal(await text(page, "speak-speed-value"), "1.25×", "the settings of that time");
  await page.getByRole("button", { name: "Play", exact: true }).click();
  await page.waitForFunction(() => globalThis.rendered.length > 2_400, null, WAIT);
  await page.locator("#speak-reading .now").first().waitFor(WAIT);
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await played(page);
  passed("what was spoken is opened again from the history, with its sound and its words");
}

// Lexicons are added, chosen and deleted.
export async function spells(page) {
  await page.waitForFunction(() => document.getElementById("speak-model").value, null, WAIT);
  await page.locator("#lexicons summary").click();
  await page.locator("#lexicons-name").fill("page-test");
  await page.locator("#lexicons-text").fill("no equals sign");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await page.locator("#lexicons-status[data-kind=error]").waitFor(WAIT);
  await page.setInputFiles("#lexicons-file", { name: "Page Test.txt", mimeType: "text/plain", buffer: Buffer.from("nginx = engine x\nSQL = sequel\n") });
  await shows(page, "lexicons-status", "Page Test.txt is read");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await shows(page, "lexicons-status", "page-test is saved with 2 words");
  const row = page.locator('[data-lexicon="page-test"]');
  assert.ok(await row.getByRole("checkbox").isChecked());
  await accessible(page, "lexicons");
  await picture(page, "speak-lexicons-desktop");
  const frames = [];
  page.on("websocket", (socket) => socket.on("framesent", ({ payload }) => typeof payload === "string" && frames.push(JSON.parse(payload))));
  // What is asked of the server.
  const sent = async () => {
    await page.getByRole("button", { name: "Speak", exact: true }).click();
    await shows(page, "speak-status", "^Done");
    return frames.splice(0).find(({ type }) => type === "speak");
  };
  await page.getByLabel("Text", { exact: true }).fill("nginx.");
  assert.deepEqual((await sent()).lexicons, ["page-test"]);
  const spelled = Number.parseFloat(await text(page, "speak-length"));
  await row.getByRole("checkbox").uncheck();
  assert.equal((await sent()).lexicons, undefined);
  // The model says each byte for as long.
  assert.ok(Number.parseFloat(await text(page, "speak-length")) < spelled, "engine x is longer than nginx");
  page.once("dialog", (question) => question.accept());
  await row.getByRole("button", { name: "Delete" }).click();
  await row.waitFor({ state: "detached", ...WAIT });
  const { lexicons } = await (await fetch(new URL("/v1/lexicons", url))).json();
  assert.equal(lexicons.some(({ id }) => id === "page-test"), false);
  await page.locator("#lexicons summary").click();
  passed("a lexicon is added from a file, chosen for a text, and deleted");
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
