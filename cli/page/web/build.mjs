// Builds what the wheel holds in ../static: page.js and page.css, report.js of `turnout simulate
// --report`, index.html, icon.svg and notices.txt.
import { createHash } from "node:crypto";
import { copyFileSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";

const out = "../static";

/** The digest of everything that the bundle is made from, in the order that `hack.codegen.page` uses. */
function digest() {
  const names = ["package.json", "package-lock.json", "tsconfig.json", "build.mjs", "index.html", "icon.svg"];
  names.push(...readdirSync("src", { recursive: true }).map((name) => join("src", name)).filter((name) => /\.(tsx?|css)$/.test(name)));
  const hash = createHash("sha256");
  for (const name of names.sort()) hash.update(name + "\0" + readFileSync(name, "utf8") + "\0");
  return hash.digest("hex");
}

await build({
  entryPoints: { page: "src/main.tsx", report: "src/report.tsx" },
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  outdir: out,
  banner: { js: `// sources ${digest()}` },
});
copyFileSync("index.html", join(out, "index.html"));
copyFileSync("icon.svg", join(out, "icon.svg"));
const notices = ["The page of Turnout contains these libraries.\n"];
for (const name of ["preact", "uplot"]) {
  const { version, license } = JSON.parse(readFileSync(join("node_modules", name, "package.json"), "utf8"));
  const text = readFileSync(join("node_modules", name, "LICENSE"), "utf8").trim();
  notices.push(`${name} ${version} (${license})\n\n${text}\n`);
}
writeFileSync(join(out, "notices.txt"), notices.join("\n----\n\n"));
