// What all checks of the page share: the browser, what is shown, what is played, what axe-core finds.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdtemp, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";

// The packages are below `target/`, where Node.js does not look for them.
const require = createRequire(new URL("../../../target/node/package.json", import.meta.url));
const { chromium } = require("playwright-core");
const AXE = await readFile(require.resolve("axe-core/axe.min.js"), "utf8");

export const [part, url, program, recording, ...names] = process.argv.slice(2);
const pictures = process.env.IZWI_PICTURES;
const TABS = ["speak", "listen", "converse", "voices", "models", "jobs", "history", "engine"];
export const DESKTOP = { viewport: { width: 1180, height: 860 }, colorScheme: "light" };
export const PHONE = { viewport: { width: 390, height: 844 }, colorScheme: "dark", isMobile: true, hasTouch: true };
export const WAIT = { timeout: 60_000 };

// The first error of a page.
export let failure = null;
// Requests without a whole answer.
export const pending = new Set();
// Playwright wants a path.
const folders = process.env.PATH.split(delimiter);
const executablePath = [program, ...folders.map((folder) => join(folder, program))].find(existsSync);
export const folder = await mkdtemp(join(tmpdir(), "izwi-page-"));
export const browser = await chromium.launch({
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
    // A machine may have no other network.
    "--allow-loopback-in-peer-connection",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
    `--use-file-for-fake-audio-capture=${recording}`,
  ],
});

export function passed(what) {
  console.log(`passed: ${what}`);
}

// A page, whose errors fail the test. Without a service worker, which answers before what a test puts in the way of requests.
export async function open(options = DESKTOP) {
  const context = await browser.newContext({ serviceWorkers: "block", ...options });
  const page = await context.newPage();
  page.on("pageerror", (error) => (failure ??= error));
  page.on("console", (message) => {
    // A refused request is a line of its own, and tested where it is expected.
    const isFault = message.type() === "error" && !message.text().startsWith("Failed to load resource");
    if (isFault && !message.text().includes("WebSocket")) failure ??= new Error(message.text());
  });
  page.on("requestfinished", (request) => pending.delete(request));
  page.on("requestfailed", (request) => pending.delete(request));
  page.on("request", (request) => {
    const to = new URL(request.url());
    if (to.protocol === "blob:") return;
    pending.add(request);
    if (to.host !== new URL(url).host) failure ??= new Error(`foreign host ${to}`);
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

// Loads the page anew. A browser that does not begin to, though the server answers all it is asked, is told once more.
export async function reload(page) {
  try {
    await page.reload();
  } catch (error) {
    if (error.name !== "TimeoutError" || [...pending].some((request) => request.frame().page() === page)) throw error;
    assert.ok((await fetch(url, { signal: AbortSignal.timeout(5_000) })).ok, "the server answers");
    await page.reload();
  }
}

export const text = (page, id) => page.locator(`#${id}`).textContent();
export const shows = (page, id, what) =>
  page.waitForFunction(([id, what]) => new RegExp(what).test(document.getElementById(id).textContent), [id, what], WAIT);

export async function tab(page, name) {
  await page.getByRole("link", { name: name[0].toUpperCase() + name.slice(1), exact: true }).click();
  await page.locator(`#page-${name}`).waitFor();
}

export async function picture(page, name) {
  if (pictures) await page.screenshot({ path: join(pictures, `${name}.png`), animations: "disabled", ...WAIT });
}

// No violation of the rules of axe-core, and nothing wider than the screen.
export async function accessible(page, what) {
  await page.evaluate(AXE);
  // Colours that are on their way are those of nothing.
  await page.evaluate(() => Promise.all(document.getAnimations().map((each) => each.finished.catch(() => {}))));
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 200)).join("; ")}`);
  assert.deepEqual(found, [], what);
  const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
  assert.ok(wide <= room, `${what} is ${wide} px wide on a screen of ${room}`);
}

// The button for which people come to a page.
const FIRST = { speak: "speak-go", listen: "listen-record", converse: "converse-start" };

// It is on the first screen of a phone.
async function reachable(page, name) {
  const { y, height } = await page.locator(`#${FIRST[name]}`).boundingBox();
  assert.ok(y + height < PHONE.viewport.height, `the main action of ${name} ends at ${y + height} px`);
}

// Every tab in both sizes and colours.
export async function everywhere(state, names = TABS) {
  for (const [size, options] of [["desktop", DESKTOP], ["phone", PHONE]]) {
    const page = await open(options);
    await page.waitForFunction(() => document.getElementById("health").dataset.state !== "unknown", null, WAIT);
    for (const name of names) {
      await tab(page, name);
      if (size === "phone" && FIRST[name]) await reachable(page, name);
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
export async function tap(page) {
  await page.evaluate(async () => {
    const { Player } = await import("/page/player.js");
    globalThis.rendered = [];
    Player.exact = true;
    Player.tap = (samples) => globalThis.rendered.push(...samples.map((sample) => Math.round(sample * 32768)));
  });
}

export const played = (page) => page.evaluate(() => globalThis.rendered.splice(0));

// The samples of POST /v1/audio/speech.
export async function overHttp(body) {
  const response = await fetch(new URL("/v1/audio/speech", url), {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ response_format: "pcm", sample_rate: 24_000, ...body }),
  });
  assert.equal(response.status, 200, await response.clone().text().catch(() => ""));
  const bytes = await response.arrayBuffer();
  return [...new Int16Array(bytes)];
}

