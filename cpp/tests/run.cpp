// Runs an entry of an artifact on the inputs of a safetensors file, and compares with the results in it.
//
//     lampwork_run FILE ENTRY CASE [TOLERANCE] [THREADS] [CALLS]
//
// CASE has in.0, in.1, ... and out.0, out.1, ...; differences are those of float32 and float64, other results have to be equal.
// With CALLS the call is repeated, and its median time printed.
#include "container.h"
#include "lampwork/lampwork.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

using lampwork::runtime::Bytes;
using lampwork::runtime::Container;
using lampwork::runtime::StoredTensor;

// The largest difference; infinity where one is no number and the other is.
template <class T>
double difference(const lampwork::Tensor& found, const StoredTensor& expected) {
  const std::vector<T> elements = found.elements<T>();
  double most = 0;
  for (size_t i = 0; i < elements.size(); ++i) {
    T wanted;
    std::memcpy(&wanted, expected.bytes.data() + i * sizeof wanted, sizeof wanted);
    const double apart = std::fabs(static_cast<double>(elements[i]) - static_cast<double>(wanted));
    if (std::isnan(apart)) {
      if (!(std::isnan(static_cast<double>(wanted)) && std::isnan(static_cast<double>(elements[i])))) return INFINITY;
    } else {
      most = std::max(most, apart);
    }
  }
  return most;
}

double difference(const lampwork::Tensor& found, const StoredTensor& expected) {
  if (found.dtype() != expected.dtype || found.shape() != expected.shape) return INFINITY;
  switch (found.dtype()) {
    case LW_FLOAT32:
      return difference<float>(found, expected);
    case LW_FLOAT64:
      return difference<double>(found, expected);
    default:
      return found.is_contiguous() && std::memcmp(found.data(), expected.bytes.data(), expected.bytes.size()) == 0 ? 0 : INFINITY;
  }
}

int run(int count, char** arguments) {
  if (count < 4) {
    std::fprintf(stderr, "usage: lampwork_run FILE ENTRY CASE [TOLERANCE] [THREADS] [CALLS]\n");
    return 2;
  }
  const double tolerance = count > 4 ? std::atof(arguments[4]) : 1e-5;
  lampwork::Options options;
  options.trust = true;
  options.threads = count > 5 ? std::atoi(arguments[5]) : 1;
  lampwork::Model model(arguments[1], options);
  const size_t entry = model.entry(arguments[2]);
  const Container file(Bytes::map(arguments[3]));
  std::vector<lampwork::Tensor> inputs;
  for (size_t i = 0; const StoredTensor* tensor = file.find("in." + std::to_string(i)); ++i)
    inputs.emplace_back(const_cast<char*>(tensor->bytes.data()), tensor->dtype, tensor->shape);
  const lampwork::Result result = model.run(inputs, entry);
  double most = 0;
  for (size_t i = 0; i < result.size(); ++i) {
    const StoredTensor* expected = file.find("out." + std::to_string(i));
    if (expected != nullptr) most = std::max(most, difference(result[i], *expected));
  }
  std::printf("%s: %zu results, the largest difference is %g\n", model.target_reason().c_str(), result.size(), most);
  std::vector<double> times;
  for (int i = 0; count > 6 && i < std::atoi(arguments[6]); ++i) {
    const auto begin = std::chrono::steady_clock::now();
    (void)model.run(inputs, entry);
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  if (!times.empty()) std::printf("median %.2f us of %zu calls\n", times[times.size() / 2], times.size());
  return most <= tolerance ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return run(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
