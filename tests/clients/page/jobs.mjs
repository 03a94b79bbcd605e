// The page Jobs.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";

import { PHONE, WAIT, accessible, open, passed, picture, shows, tab } from "./harness.mjs";

const paragraph = (number) => `Paragraph ${number}. The rain went on, and nobody minded it at all.`;
const book = (paragraphs) => ({
  name: "book.md",
  mimeType: "text/markdown",
  buffer: Buffer.from(`# Rain\n\n${Array.from({ length: paragraphs }, (_, at) => paragraph(at)).join("\n\n")}`),
});

async function begin(page, paragraphs) {
  await page.getByLabel("Book or recording").setInputFiles(book(paragraphs));
  await page.getByLabel("Result format").selectOption("wav");
  await page.getByRole("button", { name: "Begin" }).click();
  await shows(page, "jobs-status", "book.md is queued");
}

export async function works(page) {
  await tab(page, "jobs");
  await page.waitForFunction(() => document.getElementById("jobs-model").value, null, WAIT);
  await begin(page, 12);
  const done = page.locator('[data-job][data-status="completed"]');
  await done.waitFor(WAIT);
  const [download] = await Promise.all([page.waitForEvent("download"), done.getByRole("button", { name: "Download" }).click()]);
  const file = await readFile(await download.path());
  assert.match(download.suggestedFilename(), /^job_\w+\.wav$/);
  assert.ok(file.subarray(0, 4).toString() === "RIFF" && file.length > 20_000, `${file.length} bytes`);
  passed("a book is sent, and its audio downloaded");

  await begin(page, 2000);
  const running = page.locator('[data-job][data-status="running"]');
  await running.getByText(/left/).waitFor(WAIT);
  assert.ok(await running.getByRole("progressbar").evaluate((bar) => bar.max > 100_000 && bar.value > 0));
  await accessible(page, "a job that runs");
  await picture(page, "jobs-running-desktop");
  const phone = await open(PHONE);
  await phone.evaluate(() => (location.hash = "#jobs"));
  await phone.locator('[data-job][data-status="running"]').waitFor(WAIT);
  await accessible(phone, "jobs on a phone");
  await phone.context().close();
  page.once("dialog", (question) => question.accept());
  await running.getByRole("button", { name: "Cancel" }).click();
  await running.waitFor({ state: "detached", ...WAIT });
  await done.getByRole("button", { name: "Delete" }).click();
  await page.getByText("There are none.").waitFor(WAIT);
  passed("the progress of a job is shown; it is cancelled, and one that is done deleted");
}
