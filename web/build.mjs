// Builds the pages into a folder: src/bertie/explore/page/static, or the one that is named on the command line.
// The same sources and package-lock.json give the same bytes, so the committed files can be compared with a build.

import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "..", "src", "bertie", "explore", "page", "static");
mkdirSync(out, { recursive: true });

const built = await build({
  absWorkingDir: here,
  entryPoints: { page: "src/main.ts" },
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  metafile: true,
  logLevel: "warning",
});
await build({ absWorkingDir: here, entryPoints: ["src/page.css"], outdir: out, minify: true, target: "chrome110", logLevel: "warning" });
for (const name of ["index.html", "icon.svg"]) copyFileSync(join(here, "src", name), join(out, name));

// What other people wrote and the bundle holds, with their terms.
const packages = new Set();
for (const file of Object.keys(built.metafile.inputs)) {
  const found = file.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)\//);
  if (found) packages.add(found[1]);
}
const terms = [...packages].sort().map((name) => {
  const { version } = JSON.parse(readFileSync(join(here, "node_modules", name, "package.json"), "utf8"));
  return `${name} ${version}\n\n${readFileSync(join(here, "node_modules", name, "LICENSE"), "utf8").trim()}\n`;
});
writeFileSync(join(out, "licenses.txt"), terms.join("\n----\n\n"));
