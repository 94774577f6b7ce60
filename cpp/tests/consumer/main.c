/* Runs the entry "heap" of an artifact on four numbers: x + x + 1. */
#include <lampwork/lampwork.h>

#include <stdio.h>

int main(int count, char** arguments) {
  lw_options options = lw_default_options();
  lw_model* model = NULL;
  lw_result* result = NULL;
  size_t entry = 0;
  float x[4] = {1, 2, 3, 4};
  const int64_t shape[1] = {4};
  lw_tensor input = {x, LW_FLOAT32, 1, shape, NULL}, output;
  if (count < 2 || lw_abi_version() != LW_ABI_VERSION) return 2;
  if (lw_load(arguments[1], &options, &model) != LW_TRUST) return 3;
  options.trust = 1;
  if (lw_load(arguments[1], &options, &model) != LW_OK || lw_find_entry(model, "heap", &entry) != LW_OK ||
      lw_run(model, entry, &input, 1, NULL, 0, &result) != LW_OK || lw_result_tensor(result, 0, &output) != LW_OK) {
    puts(lw_error());
    return 1;
  }
  lw_free(model);
  printf("%g %g %g %g\n", ((float*)output.data)[0], ((float*)output.data)[1], ((float*)output.data)[2], ((float*)output.data)[3]);
  lw_result_free(result);
  return lw_run(NULL, 0, NULL, 0, NULL, 0, &result) == LW_ARGUMENT && lw_find_entry(NULL, "x", &entry) == LW_ARGUMENT ? 0 : 4;
}
