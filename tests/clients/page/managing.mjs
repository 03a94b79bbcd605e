// The pages Models and Engine.

import assert from "node:assert/strict";

import { WAIT, accessible, overHttp, passed, picture, shows, tab, text, url } from "./harness.mjs";

export async function manages(page, [model, listener]) {
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
export async function lists(page) {
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

export async function measures(page, [model]) {
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

// Search, and a model that is deleted once its name is written. NAME 1 is a model that is not a default one.
export async function deletes(page, [model]) {
  await tab(page, "models");
  // The server knows the model, not its size and languages.
  const answer = await (await fetch(new URL("/v1/catalogue", url))).json();
  const known = { ...answer.data[0], id: model, description: "A model to delete", languages: ["de", "sw"], bytes: 4_200_000, installed: true, pull: null };
  await page.route("**/v1/catalogue", (route) => route.fulfill({ json: { ...answer, data: [...answer.data, known] } }));
  const row = page.locator(`[data-model="${model}"]`);
  await row.getByText("4.2 MB on disk").waitFor(WAIT);
  assert.match(await row.innerText(), /German, Swahili/);
  await page.locator("#models-search").fill("swahili to delete");
  await page.waitForFunction(() => document.querySelectorAll("#page-models [data-model]").length === 1, null, WAIT);
  assert.ok(await row.isVisible());
  await page.locator("#models-filter").selectOption("loaded");
  await row.waitFor({ state: "detached", ...WAIT });
  await page.locator("#models-filter").selectOption("all");
  const dialog = page.getByRole("dialog", { name: "Delete the model?" });
  await row.getByRole("button", { name: `Delete ${model}` }).click();
  await accessible(page, "the question before a model is deleted");
  await picture(page, "models-delete-desktop");
  const go = dialog.getByRole("button", { name: "Delete" });
  assert.ok(await go.isDisabled());
  await dialog.getByLabel("Its name").fill(`${model}s`);
  assert.ok(await go.isDisabled(), "another name deletes nothing");
  await dialog.getByRole("button", { name: "Cancel" }).click();
  assert.equal((await fetch(new URL(`/v1/models/${model}`, url))).status, 200);
  await row.getByRole("button", { name: `Delete ${model}` }).click();
  await dialog.getByLabel("Its name").fill(model);
  await page.unroute("**/v1/catalogue");
  await page.keyboard.press("Enter");
  await shows(page, "models-status", `${model} is deleted`);
  assert.equal((await fetch(new URL(`/v1/models/${model}`, url))).status, 404);
  await page.locator("#models-search").fill("");
  await page.waitForFunction(() => document.querySelectorAll("#page-models [data-model]").length > 5, null, WAIT);
  await row.waitFor({ state: "detached", ...WAIT });
  passed("models are searched; one is deleted once its name is written");
}
