// Bundles the extension into dist/extension.js; `--package` also writes dist/ray-devkit.vsix. No network.
import { execFileSync } from "node:child_process";
import { build } from "esbuild";

await build({
  entryPoints: ["src/extension.ts"],
  outfile: "dist/extension.js",
  bundle: true,
  platform: "node",
  format: "cjs",
  target: "node20",
  external: ["vscode"],
  minify: process.argv.includes("--package"),
  sourcemap: process.argv.includes("--package") ? false : "linked",
  logLevel: "warning",
});
if (process.argv.includes("--package")) {
  const quiet = ["--no-dependencies", "--no-update-package-json", "--no-rewrite-relative-links"];
  const command = ["node_modules/@vscode/vsce/vsce", "package", ...quiet, "--out", "dist/ray-devkit.vsix"];
  execFileSync(process.execPath, command, { stdio: "inherit" });
}
