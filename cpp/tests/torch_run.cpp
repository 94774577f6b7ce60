// As run.cpp, with torch: lampwork_torch_run FILE ENTRY CASE [TOLERANCE] [CALLS] [WEIGHTS]
// An alias.N in CASE is an input and an offset: the result N lies there; others share memory with no input.
#include "container.h"
#include "lampwork/torch.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace {

using lampwork::runtime::Bytes;
using lampwork::runtime::Container;
using lampwork::runtime::StoredTensor;

at::Tensor tensor_of(const StoredTensor& stored) {
  const at::ScalarType dtype = stored.dtype == LW_INT64     ? at::kLong
                               : stored.dtype == LW_FLOAT32 ? at::kFloat
                               : stored.dtype == LW_FLOAT64 ? at::kDouble
                               : stored.dtype == LW_COMPLEX64 ? at::kComplexFloat
                                                            : at::kByte;
  return at::from_blob(const_cast<char*>(stored.bytes.data()), stored.shape, dtype).clone();
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) return 2;
  try {
    const double tolerance = count > 4 ? std::atof(arguments[4]) : 1e-5;
    lampwork::TorchModel model(arguments[1], {.trust = true, .threads = 1});
    if (count > 6) model.set_weights(arguments[6]);
    const Container file(Bytes::map(arguments[3]));
    std::vector<at::Tensor> inputs;
    for (size_t i = 0; const StoredTensor* tensor = file.find("in." + std::to_string(i)); ++i) inputs.push_back(tensor_of(*tensor));
    double most = 0;
    std::vector<at::Tensor> results;
    for (int turn = 0; turn < 2; ++turn) {
      results = model.run(inputs, arguments[2]);
      for (size_t i = 0; i < results.size(); ++i) {
        const StoredTensor* alias = file.find("alias." + std::to_string(i));
        for (size_t k = 0; k < inputs.size(); ++k) {
          const at::Tensor place = alias == nullptr ? at::tensor({-1, -1}) : tensor_of(*alias);
          const bool is_there = place[0].item<int64_t>() == static_cast<int64_t>(k);
          const int64_t offset = results[i].storage_offset() - inputs[k].storage_offset();
          if (results[i].is_alias_of(inputs[k]) != is_there || (is_there && offset != place[1].item<int64_t>())) {
            std::printf("the result %zu lies elsewhere\n", i);
            return 1;
          }
        }
        const StoredTensor* expected = file.find("out." + std::to_string(i));
        if (expected == nullptr) continue;
        const at::Tensor wanted = tensor_of(*expected);
        if (!results[i].sizes().equals(wanted.sizes())) return 1;
        const at::ScalarType wide = wanted.is_complex() ? at::kComplexDouble : at::kDouble;
        most = std::max(most, (results[i].to(wide) - wanted.to(wide)).abs().max().item<double>());
      }
    }
    std::printf("%s; calls %s; the largest difference is %g\n", model.target_reason().c_str(), model.aten_calls(arguments[2]).c_str(),
                most);
    std::vector<double> times;
    for (int i = 0; count > 5 && i < std::atoi(arguments[5]); ++i) {
      const auto begin = std::chrono::steady_clock::now();
      (void)model.run(inputs, arguments[2]);
      times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    }
    std::sort(times.begin(), times.end());
    if (!times.empty()) std::printf("median %.2f us\n", times[times.size() / 2]);
    return most <= tolerance ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
