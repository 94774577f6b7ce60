// Builds the page: one file with the script, the style and the licences inside, and the hashes of both in its policy.
// `node build.mjs [FOLDER]` writes report.html and LICENSES.txt there; the same sources give the same bytes.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const folder = process.argv[2] ?? join(here, "../src/lampwork/inspect/report/assets");

async function bundle(entry) {
  const result = await build({
    absWorkingDir: here,
    entryPoints: [entry],
    bundle: true,
    minify: true,
    write: false,
    format: "iife",
    target: ["chrome115", "firefox115", "safari16.4"],
    charset: "ascii",
    legalComments: "none",
  });
  const text = result.outputFiles[0].text.trim();
  if (/<\/(script|style)|<!--/i.test(text)) throw new Error(`${entry} would end its element early`);
  return text;
}

function licenses() {
  return ["@dagrejs/dagre", "@dagrejs/graphlib"]
    .map((name) => {
      const at = join(here, "node_modules", name);
      const { version } = JSON.parse(readFileSync(join(at, "package.json"), "utf8"));
      return `${name} ${version}\n\n${readFileSync(join(at, "LICENSE"), "utf8").trim()}\n`;
    })
    .join("\n----\n\n");
}

const hash = (text) => `'sha256-${createHash("sha256").update(text, "utf8").digest("base64")}'`;
const script = await bundle("src/main.ts");
const style = await bundle("src/style.css");
const parts = {
  POLICY: `default-src 'none'; script-src ${hash(script)}; style-src ${hash(style)}; img-src data:; base-uri 'none'; form-action 'none'`,
  STYLE: style,
  SCRIPT: script,
  LICENSES: licenses(),
};
// A function as replacement: "$&" in minified code is no reference to a match.
const page = readFileSync(join(here, "src/page.html"), "utf8").replace(/%(POLICY|STYLE|SCRIPT|LICENSES)%/g, (_, name) => parts[name]);
mkdirSync(folder, { recursive: true });
writeFileSync(join(folder, "report.html"), page);
writeFileSync(join(folder, "LICENSES.txt"), parts.LICENSES);
