// Unpacks the browser of the npm package and the libraries that it needs into one folder.
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliDecompressSync } from "node:zlib";

const [packed, folder] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const open = (name) => brotliDecompressSync(readFileSync(join(packed, name)));
writeFileSync(join(folder, "chromium"), open("chromium.br"), { mode: 0o755 });
for (const name of ["al2023.tar.br", "swiftshader.tar.br"]) {
  execFileSync("tar", ["-x", "-C", folder], { input: open(name) });
}
