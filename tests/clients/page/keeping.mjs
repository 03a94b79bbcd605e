// What the browser keeps of the page: the theme, the history, the page itself for when the server is away.

import assert from "node:assert/strict";

import { DESKTOP, WAIT, accessible, open, passed, picture, reload, shows, tab, url } from "./harness.mjs";

// The theme of the system, and one that is chosen.
export async function themes() {
  const page = await open(DESKTOP);
  const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await paper();
  await page.emulateMedia({ colorScheme: "dark" });
  await page.waitForFunction((light) => getComputedStyle(document.body).backgroundColor !== light, light, WAIT);
  const dark = await paper();
  await page.getByLabel("Theme").selectOption("light");
  assert.equal(await paper(), light);
  await reload(page);
  assert.equal(await paper(), light, "it is kept");
  await page.emulateMedia({ colorScheme: "light" });
  await page.getByLabel("Theme").selectOption("dark");
  assert.equal(await paper(), dark);
  await accessible(page, "a dark desktop");
  await tab(page, "engine");
  await page.getByText("What the terms mean").click();
  await page.getByText("Processing time over audio time. At 0.5").waitFor(WAIT);
  await accessible(page, "the terms of the engine");
  await picture(page, "engine-terms-desktop");
  await page.context().close();
  passed("the theme is that of the system, or the one that is chosen; terms are explained");
}

// An entry of the history without its sound.
const entry = (title) => ({ kind: "speech", title, text: title, settings: {}, words: [], seconds: 1, audio: null });

// The switch of the history, its search and bounds, and erasing.
export async function keeps(page) {
  await tab(page, "history");
  await page.getByRole("button", { name: "Erase all" }).waitFor(WAIT);
  page.once("dialog", (question) => question.accept());
  await page.getByRole("button", { name: "Erase all" }).click();
  await shows(page, "history-room", "^0 of at most 200");
  const add = (titles) =>
    page.evaluate(async ([entries]) => {
      const { add } = await import("/page/archive.js");
      for (const each of entries) await add(each);
    }, [titles.map(entry)]);
  await add(Array.from({ length: 203 }, (_, at) => `Number ${at}`));
  await shows(page, "history-room", "^200 of at most 200");
  const rows = page.locator("#history-list li");
  assert.match(await rows.first().innerText(), /Number 202/, "the newest first");
  assert.equal(await rows.filter({ hasText: /Number [012]$/m }).count(), 0, "the oldest left");
  await page.locator("#history-search").fill("number 17");
  await page.waitForFunction(() => document.querySelectorAll("#history-list li").length === 11, null, WAIT);
  await accessible(page, "a history");
  await rows.first().getByRole("button", { name: "Erase" }).click();
  await shows(page, "history-room", "^199 of");
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export all" }).click()]);
  const { readFile } = await import("node:fs/promises");
  const all = JSON.parse(await readFile(await download.path(), "utf8"));
  assert.equal(all.length, 199);
  await page.getByLabel("Keep a history").uncheck();
  await add(["Nobody keeps this."]);
  await page.locator("#history-search").fill("");
  await shows(page, "history-room", "^199 of");
  await reload(page);
  assert.equal(await page.getByLabel("Keep a history").isChecked(), false, "the switch is kept");
  await page.getByLabel("Keep a history").check();
  page.once("dialog", (question) => question.accept());
  await page.getByRole("button", { name: "Erase all" }).click();
  await shows(page, "history-room", "^0 of");
  passed("the history is bounded, searched, exported, erased, and can be off");
}

// Installable; there without its server, and never older than the server's.
export async function installs() {
  const page = await open({ ...DESKTOP, serviceWorkers: "allow" });
  const context = page.context();
  const session = await context.newCDPSession(page);
  const { errors, data } = await session.send("Page.getAppManifest");
  assert.deepEqual(errors, []);
  for (const { src, sizes } of JSON.parse(data).icons) {
    const size = await page.evaluate(async (src) => {
      const image = new Image();
      image.src = src;
      await image.decode();
      return `${image.naturalWidth}x${image.naturalHeight}`;
    }, src);
    if (sizes !== "any") assert.equal(size, sizes, src);
  }
  const { installabilityErrors } = await session.send("Page.getInstallabilityErrors");
  assert.deepEqual(installabilityErrors.map(({ errorId }) => errorId).filter((id) => id !== "in-incognito"), []);
  const kept = () => page.evaluate(async () => (await (await caches.open("izwi-shell")).keys()).map((request) => new URL(request.url).pathname));
  for (const until = Date.now() + WAIT.timeout; !(await kept()).includes("/page/main.js"); ) assert.ok(Date.now() < until, "the page is kept");
  await reload(page);
  await page.waitForFunction(() => navigator.serviceWorker.controller && document.getElementById("speak-model").value, null, WAIT);
  const names = await kept();
  assert.ok(names.every((name) => name === "/" || name.startsWith("/page/")), `the API is not kept: ${names}`);
  passed("the page can be installed; answers of the API are not kept");

  // A file that changes at the server is the new one at once, though the old one is kept.
  const style = () => page.evaluate(() => fetch("/page/style.css").then((answer) => answer.text()));
  const before = await style();
  await context.route("**/page/style.css", (route) => route.fulfill({ contentType: "text/css", body: "/* new */" }));
  assert.equal(await style(), "/* new */");
  await context.unroute("**/page/style.css");
  assert.equal(await style(), before);
  passed("an update of the page is not held back");

  await context.route("**/*", (route) => route.abort());
  await reload(page);
  await page.getByRole("heading", { name: "Speak", level: 1 }).waitFor(WAIT);
  await shows(page, "health", "not reachable");
  const reached = await page.evaluate(() => fetch("/v1/models").then(() => true, () => false));
  assert.equal(reached, false);
  await tab(page, "history");
  await page.getByText("What was spoken and transcribed here").waitFor(WAIT);
  await context.close();
  passed("without its server the page is there, and says so");
}
