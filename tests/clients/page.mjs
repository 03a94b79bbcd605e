// Uses the web page of a running server in a headless Chromium, as a person does: by its labels, keys and looks.
//
// usage: page.mjs PART URL BROWSER RECORDING [NAME ...]
//
// PART `real` needs the default TTS model NAME 1, the ASR model NAME 2 of English alone and NAME 3 of many languages, `lexicons` one
// that saves lexicons and says each byte for as long, `jobs` one whose units take a while, `speakers` one that tells speakers apart in files, `recording` one that tells them live,
// `delete` a model NAME 1 of its store, `key` a server with the key NAME 1, `voices` one
// whose model NAME 1 clones voices, `empty` one whose default model NAME 1 is not installed, `pull` one that can pull it
// besides, `converse` a chat model with long answers, `model` any chat model. RECORDING is the microphone. Pictures are written
// to the folder IZWI_PICTURES, if that is set. Exits with a stack trace at the first fault; prints one line for each check that
// passed.

import assert from "node:assert/strict";
import { rm } from "node:fs/promises";

import { WAIT, accessible, browser, everywhere, failure, folder, names, open, overHttp, part, passed, pending, picture, played, recording, reload, shows, tab, tap, text, url } from "./page/harness.mjs";
import { installs, keeps, themes } from "./page/keeping.mjs";
import { works } from "./page/jobs.mjs";
import { distinguishes, listens, recordsSpeakers, translates } from "./page/listening.mjs";
import { deletes, lists, manages, measures } from "./page/managing.mjs";
import { speaks, spells } from "./page/speaking.mjs";

// The settings that the page sends to its sessions.
function listensTo(page) {
  const updates = [];
  page.on("websocket", (socket) =>
    socket.on("framesent", ({ payload }) => {
      const event = typeof payload === "string" && JSON.parse(payload);
      if (event?.type === "session.update") updates.push(event.session);
    }),
  );
  return updates;
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
    await translates(page, names);
    await keeps(page);
    await themes();
    await installs();
    await everywhere("ready");
  },

  async lexicons(page) {
    await spells(page);
  },

  async jobs(page) {
    await works(page);
  },

  async speakers(page) {
    await distinguishes(page);
  },

  async recording(page) {
    await recordsSpeakers(page);
  },

  async delete(page) {
    await deletes(page, names);
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
    await reload(page);
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

  async turns(page) {
    const updates = listensTo(page);
    await tab(page, "converse");
    await page.waitForFunction(() => document.getElementById("converse-model").value, null, WAIT);
    await page.getByLabel("A message").fill("Good evening.");
    await page.keyboard.press("Enter");
    await page.locator(".bubble.user", { hasText: "Good evening." }).waitFor(WAIT);
    assert.ok(updates.length && updates.every(({ audio }) => !("turn_detection" in audio.input)), JSON.stringify(updates));
    passed("the turns of a pipeline end as its settings say");
  },

  async converse(page) {
    const updates = listensTo(page);
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
    assert.deepEqual(updates.map(({ audio }) => audio.input.turn_detection), [{ type: "semantic_vad" }]);
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

    // A server with a catalogue, in which its pipelines are not.
    const known = { id: "a-model", tasks: ["chat"], languages: [], description: "", installed: false, bytes: 0, pull: null };
    await page.route("**/v1/catalogue", (route) => route.fulfill({ json: { object: "list", data: [known] } }));
    const model = page.locator("#converse-model");
    await model.locator("option", { hasText: "(pipeline)" }).waitFor({ state: "attached", ...WAIT });
    await shows(page, "converse-about", "a language model answers");
    await accessible(page, "a pipeline");
    passed("pipelines are told from models");
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

try {
  await parts[part](await open());
  if (failure) throw failure;
  console.log(`passed: all of ${part}`);
} catch (error) {
  const [context] = browser.contexts();
  const [page] = context?.pages() ?? [];
  if (page) console.log(await page.locator("main").innerText({ timeout: 5000 }).catch(() => ""));
  for (const request of pending) console.log(`unanswered: ${request.method()} ${request.url()} after ${(Date.now() - request.timing().startTime) | 0} ms`);
  throw failure ?? error;
} finally {
  await browser.close();
  await rm(folder, { recursive: true, force: true });
}
