// Runs the first entry of an artifact whose one input is a float32 tensor, from Node (npm install koffi):
//
//     node run.mjs DIR/liblampwork_runtime.so m.lamp 4 16
//
// with ones of the sizes that follow the file.
import koffi from "koffi";

const [library, path, ...sizes] = process.argv.slice(2);
const lib = koffi.load(library);

koffi.struct("lw_options", { size: "size_t", trust: "int", threads: "int", target: "const char*", keys: "void*", n_keys: "size_t" });
koffi.struct("lw_tensor", { data: "void*", dtype: "int", ndim: "int32_t", shape: "int64_t*", strides: "int64_t*" });
koffi.opaque("lw_model");
koffi.opaque("lw_result");
const lw_error = lib.func("const char* lw_error()");
const lw_default_options = lib.func("lw_options lw_default_options()");
const lw_load = lib.func("int lw_load(const char* path, lw_options* options, _Out_ lw_model** model)");
const lw_free = lib.func("void lw_free(lw_model* model)");
const lw_run = lib.func(
  "int lw_run(lw_model* model, size_t entry, lw_tensor* inputs, size_t n, int64_t* numbers, size_t m, _Out_ lw_result** result)",
);
const lw_result_tensor = lib.func("int lw_result_tensor(lw_result* result, size_t output, _Out_ lw_tensor* tensor)");
const lw_result_free = lib.func("void lw_result_free(lw_result* result)");

const FLOAT32 = 1;

function check(status) {
  if (status !== 0) throw new Error(lw_error());
}

const model = [null];
check(lw_load(path, { ...lw_default_options(), trust: 1 }, model));
const shape = BigInt64Array.from(sizes, BigInt);
const ones = new Float32Array(sizes.reduce((count, size) => count * Number(size), 1)).fill(1);
const result = [null];
check(lw_run(model[0], 0, [{ data: ones, dtype: FLOAT32, ndim: shape.length, shape, strides: null }], 1, null, 0, result));
const output = {};
check(lw_result_tensor(result[0], 0, output));
const found = koffi.decode(output.shape, koffi.array("int64_t", output.ndim));
const count = found.reduce((product, size) => product * Number(size), 1);
const elements = koffi.decode(output.data, koffi.array("float", count));
console.log(Array.from(found, Number), Array.from(elements.slice(0, 4)));
lw_result_free(result[0]);
lw_free(model[0]);
