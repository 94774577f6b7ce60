// The same in C++, and what is thrown.
#include <lampwork/lampwork.hpp>

#include <cstdio>

int main(int count, char** arguments) {
  if (count < 2) return 2;
  lampwork::Options options;
  options.trust = true;
  lampwork::Model model(arguments[1], options);
  std::vector<float> x = {1, 2, 3, 4}, y(4);
  const size_t entry = model.entry("heap");
  const lampwork::Result result = model.run({lampwork::Tensor::of(x, {4})}, entry);
  for (const float each : result[0].elements<float>()) std::printf("%g ", each);
  model.run_into({lampwork::Tensor::of(x, {4})}, {lampwork::Tensor::of(y, {4})}, entry);
  for (const float each : y) std::printf("%g ", each);
  try {
    (void)model.run({}, entry);
  } catch (const lampwork::Error& error) {
    std::printf("\n%s\n", lw_status_name(error.status()));
  }
  return 0;
}
