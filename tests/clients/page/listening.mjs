// The page Listen.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";

import { WAIT, accessible, passed, picture, recording, shows, tab, url } from "./harness.mjs";

export async function listens(page, [, model]) {
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

  await exportsAndCorrects(page, result);
  await streams(page);
  await page.getByRole("button", { name: "Record" }).click();
  const live = page.locator(".result").first();
  await page.waitForFunction(() => document.querySelectorAll(".result").length === 1, null, WAIT);
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

const download = async (page, button) => {
  const [saved] = await Promise.all([page.waitForEvent("download"), button.click()]);
  return readFile(await saved.path(), "utf8");
};

// Every file of a transcript, and a word that is corrected in all of them.
async function exportsAndCorrects(page, result) {
  const file = (name) => download(page, result.getByRole("button", { name, exact: true }));
  assert.match(await file("TXT"), /^And so.*country\.\n$/s);
  const json = JSON.parse(await file("JSON"));
  assert.ok(json.segments[0].words.length > 5 && json.duration > 10 && json.text.includes("fellow"));
  assert.match(await file("Markdown"), /^# jfk\.wav\n\n\*\*00:00:00\*\* And so/);
  const correct = result.getByRole("button", { name: "Correct" });
  await correct.click();
  await result.locator(".word", { hasText: "fellow" }).first().click();
  // The sound of the word, and no more than that.
  await page.waitForFunction(() => document.querySelector(".result audio").currentTime > 0.9, null, WAIT);
  await page.waitForFunction(() => document.querySelector(".result audio").paused, null, WAIT);
  const heard = await page.evaluate(() => document.querySelector(".result audio").currentTime);
  assert.ok(heard < 3, `the word ends before ${heard} s`);
  const field = result.getByRole("textbox", { name: "Word fellow" });
  await accessible(page, "a correction");
  await field.fill("<b>dear</b>");
  await field.press("Enter");
  // With the keyboard alone: the word after it is taken out.
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Enter");
  await result.getByRole("textbox", { name: /^Word Americans/ }).fill("");
  await page.keyboard.press("Enter");
  await correct.click();
  assert.match(await file("TXT"), /^And so,? my <b>dear<\/b> ask not/, "text is never read as HTML");
  assert.match(await file("VTT"), /&lt;b&gt;dear&lt;\/b&gt; ask not/);
  assert.ok(!(await file("JSON")).includes("Americans"));
  // Corrections reach the history a moment later.
  await page.waitForTimeout(1_200);
  await result.getByRole("button", { name: "Close" }).click();
  await tab(page, "history");
  const entry = page.locator("#history-list li", { hasText: "jfk.wav" }).first();
  await entry.getByText("transcribed").waitFor(WAIT);
  const exported = JSON.parse(await download(page, entry.getByRole("button", { name: "Export" })));
  assert.ok(exported.text.includes("<b>dear</b> ask"), exported.text);
  await entry.getByRole("button", { name: "Open" }).click();
  await page.locator("#page-listen").waitFor(WAIT);
  const again = page.locator(".result").first();
  await again.getByText("From the history").waitFor(WAIT);
  assert.match(await again.locator(".words").textContent(), /my <b>dear<\/b>/);
  await page.waitForFunction(() => document.querySelector(".result audio").duration > 10, null, WAIT);
  passed("a transcript is saved as TXT, JSON, SRT, VTT and Markdown, with what was corrected by hand; the history has it");
  await again.getByRole("button", { name: "Close" }).click();
}

// The recording, again and again: a WAV file.
async function repeated(times) {
  const file = await readFile(recording);
  const at = file.indexOf("data");
  const samples = file.subarray(at + 8, at + 8 + file.readUInt32LE(at + 4));
  const length = (bytes) => {
    const field = Buffer.alloc(4);
    field.writeUInt32LE(bytes);
    return field;
  };
  const all = samples.length * times;
  const head = [file.subarray(0, 4), length(28 + all), file.subarray(8, 36), Buffer.from("data"), length(all)];
  return Buffer.concat([...head, ...Array.from({ length: times }, () => samples)]);
}

// A long file shows its text and progress while they come, and can be cancelled.
async function streams(page) {
  const running = async () => Object.values((await (await fetch(new URL("/health", url))).json()).models).reduce((sum, { running: now, pending }) => sum + (now ?? 0) + (pending ?? 0), 0);
  await page.setInputFiles("#listen-files", { name: "long.wav", mimeType: "audio/wav", buffer: await repeated(40) });
  const result = page.locator(".result").first();
  await result.locator(".word").nth(20).waitFor({ state: "attached", ...WAIT });
  const bar = result.getByRole("progressbar");
  await page.waitForFunction(() => document.querySelector(".result progress").value > 5, null, WAIT);
  assert.ok(Number(await bar.evaluate((element) => element.value / element.max)) < 0.9, "text comes long before the end");
  assert.ok(await result.getByRole("button", { name: "Cancel" }).isVisible());
  await accessible(page, "a file in progress");
  await picture(page, "listen-progress-desktop");
  assert.ok((await running()) > 0);
  await result.getByRole("button", { name: "Cancel" }).click();
  await result.getByText("Cancelled").waitFor(WAIT);
  for (const until = Date.now() + WAIT.timeout; (await running()) > 0; ) assert.ok(Date.now() < until, "the server goes on");
  const count = await result.locator(".word").count();
  await page.waitForTimeout(500);
  assert.equal(await result.locator(".word").count(), count);
  assert.ok(await result.getByRole("button", { name: "TXT" }).isEnabled(), "what there is can be saved");
  await result.getByRole("button", { name: "Close" }).click();
  passed("a long file shows progress and text as it comes; Cancel ends it at the server too");
}

// Languages by name, and translation where the model can.
export async function translates(page, [, , multilingual]) {
  await tab(page, "listen");
  const languages = await page.locator("#listen-language option").allTextContents();
  assert.deepEqual(languages, ["Detected", "English"], "a model of one language");
  assert.ok(await page.locator("#listen-task option").nth(1).isDisabled(), "it translates nothing");
  await page.locator("#listen-model").selectOption(multilingual);
  await page.locator("#listen-language option", { hasText: "German" }).waitFor({ state: "attached", ...WAIT });
  await page.locator("#listen-task").selectOption("translate");
  const [asked] = await Promise.all([page.waitForRequest("**/v1/audio/translations"), page.setInputFiles("#listen-files", recording)]);
  assert.equal(asked.method(), "POST");
  const result = page.locator(".result").first();
  await result.getByText(/ s in /).waitFor(WAIT);
  assert.match(await result.locator(".words").textContent(), /country/);
  await page.locator("#listen-task").selectOption("transcribe");
  await page.locator("#listen-model").selectOption({ index: 0 });
  passed("languages are chosen by name; a model that can translates");
}

// Turns by colour and name; names that are changed, speakers that are one.
export async function distinguishes(page) {
  await tab(page, "listen");
  await page.waitForFunction(() => !document.getElementById("listen-speakers").disabled, null, WAIT);
  await page.getByLabel("Tell speakers apart").check();
  await page.setInputFiles("#listen-files", recording);
  const result = page.locator(".result").first();
  await result.getByText(/ s in /).waitFor(WAIT);
  const turns = result.locator(".turn");
  assert.ok((await turns.count()) >= 2, await result.innerText());
  const colours = await turns.evaluateAll((all) => all.slice(0, 2).map((turn) => getComputedStyle(turn).borderLeftColor));
  assert.notEqual(colours[0], colours[1], "speakers have colours");
  await accessible(page, "speakers");
  await turns.nth(1).getByRole("button", { name: /^Play the turn of B/ }).click();
  await page.waitForFunction(() => document.querySelector(".result audio").currentTime > 0.5, null, WAIT);
  await turns.first().getByRole("button", { name: "A", exact: true }).click();
  const name = result.getByRole("textbox", { name: "Name of speaker A" });
  assert.ok(await name.evaluate((field) => field === document.activeElement), "a click on a name leads to it");
  const rename = async (text) => {
    await name.fill(text);
    await name.press("Enter");
    await result.getByRole("button", { name: text, exact: true }).first().waitFor(WAIT);
  };
  await rename("Ann");
  await picture(page, "listen-speakers-desktop");
  await rename("Ann <i>");
  const file = (label) => download(page, result.getByRole("button", { name: label, exact: true }));
  assert.match(await file("TXT"), /^Ann <i>: .*\nB: /s);
  assert.match(await file("VTT"), /<v Ann &lt;i&gt;>/);
  await result.getByRole("combobox", { name: "Merge B with" }).selectOption({ label: "Ann <i>" });
  await page.waitForFunction(() => !document.querySelector('.result .who[data-speaker="B"]'), null, WAIT);
  assert.ok(!(await file("TXT")).includes("B:"));
  assert.equal((await file("TXT")).trim().split("\n").length, 1, "one speaker has one turn");
  passed("speakers have colours and names; they are renamed, merged, and their turns played");

  await record(page, async (live) => {
    await live.getByText(/^Speakers are not told: .*whole recordings alone/).waitFor(WAIT);
    await live.locator(".word").first().waitFor(WAIT);
  });
  passed("a model for files alone is told, and words are transcribed without it");
}

async function record(page, whileOn) {
  const count = await page.locator(".result").count();
  await page.getByRole("button", { name: "Record" }).click();
  await page.waitForFunction((before) => document.querySelectorAll(".result").length > before, count, WAIT);
  const live = page.locator(".result").first();
  await whileOn(live);
  await page.locator("#listen-record").press("Enter");
  await shows(page, "listen-status", "^Done");
  return live;
}

// Who says what while it is said.
export async function recordsSpeakers(page) {
  await tab(page, "listen");
  await page.waitForFunction(() => !document.getElementById("listen-speakers").disabled, null, WAIT);
  await page.getByLabel("Tell speakers apart").check();
  const live = await record(page, async (shown) => {
    await shown.locator(".turn .word").nth(3).waitFor({ state: "attached", ...WAIT });
    await accessible(page, "a recording with speakers");
    await picture(page, "listen-live-speakers-desktop");
  });
  const text = (await live.locator(".word").allTextContents()).join(" ");
  // Each word once, whoever says it in the end.
  assert.match(text, /^The boats are late\. Are they\? They/);
  const words = await live.locator(".word").count();
  assert.equal(await live.locator(".turn .word").count(), words, "every word has a speaker in the end");
  const saved = await download(page, live.getByRole("button", { name: "TXT", exact: true }));
  assert.match(saved, /^[A-Z]: The boats/);
  // A turn is played as a whole, also what was said after its first words.
  await live.locator(".turn .play").first().click();
  await page.waitForFunction(() => document.querySelector(".result audio").currentTime > 1.6, null, WAIT);
  await page.evaluate(() => document.querySelector(".result audio").pause());
  const shown = await live.locator(".speakers input").evaluateAll((fields) => fields.map(({ value }) => value));
  const said = new Set(await live.locator(".who").allTextContents());
  assert.deepEqual(new Set(shown), said, "speakers that were corrected away are gone");
  await live.locator(".speakers input").first().fill("Ann");
  await live.locator(".speakers input").first().press("Enter");
  assert.match(await download(page, live.getByRole("button", { name: "TXT", exact: true })), /^Ann: The boats|\nAnn: /);
  passed("a recording tells who says each word, and its speakers are renamed");
}
