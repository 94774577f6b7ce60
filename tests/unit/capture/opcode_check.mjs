// Runs opcode_check.py in CPython 3.14 for WebAssembly, which Pyodide brings: `npm install pyodide@314.0.7`, then
//
//     node opcode_check.mjs PACKAGES RANDOM [OPCODE...]
//
// PACKAGES is a folder that holds the Python package `bytecode`; the rest are the arguments of opcode_check.py. Pyodide is
// looked for from the current folder up. It is slow, a program takes seconds: give it a few opcodes at a time.

import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const [packages, ...args] = process.argv.slice(2);
const found = createRequire(path.join(process.cwd(), "package.json")).resolve("pyodide");
const { loadPyodide } = await import(pathToFileURL(path.join(path.dirname(found), "pyodide.mjs")));
const here = path.dirname(fileURLToPath(import.meta.url));
const python = await loadPyodide();
for (const [name, folder] of [["repository", path.resolve(here, "../../..")], ["packages", path.resolve(packages)]]) {
  python.FS.mkdir(`/${name}`);
  python.FS.mount(python.FS.filesystems.NODEFS, { root: folder }, `/${name}`);
}
python.globals.set("given", python.toPy(args));
await python.runPythonAsync(`
import runpy, sys
tests = "/repository/tests/unit/capture"
sys.dont_write_bytecode = True
sys.path[:0] = [tests, "/packages", "/repository/tests", "/repository/tests/support"]
sys.argv = [tests + "/opcode_check.py", *given]
runpy.run_path(sys.argv[0], run_name="__main__")
`);
