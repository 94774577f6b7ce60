// Random numbers of a CUDA device's own generator, as arithmetic: what torch's kernels draw on the card, element by
// element. philox_state takes a place in the generator's stream, as a kernel of torch does; philox_words is what lies
// there, which compiled code computes where it is read (lower/random.py).
//
// There is no link to CUDA. The generator is one of torch's CUDA library, which is asked for the one function that is
// needed when the first number is drawn.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/cuda/PhiloxCudaState.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <mutex>
#include <type_traits>

namespace lampwork {

namespace {

// at::CUDAGeneratorImpl::philox_cuda_state. An object comes back through memory whose address the caller passes, of a
// function as of a method, whose first argument is the object that it is called on.
using Advance = at::PhiloxCudaState (*)(void* generator, uint64_t increment);
static_assert(std::is_trivially_copyable_v<at::PhiloxCudaState> && sizeof(at::PhiloxCudaState) > 16);

Advance find_advance() {
#if defined(__linux__) && defined(__LP64__)
  void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<Advance>(dlsym(library, "_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm"));
#else
  return nullptr;
#endif
}

Advance advance() {
  static const Advance found = find_advance();
  return found;
}

bool has_philox_state() { return advance() != nullptr; }

at::Tensor on_card(const int64_t* number, at::Device device) {
  auto* data = const_cast<int64_t*>(number);
  return at::for_blob(data, {1}).options(at::device(device).dtype(at::kLong)).target_device(device).make_tensor();
}

// Both as one complex number, which a single launch writes.
at::Tensor written(uint64_t seed, uint64_t offset, at::Device device) {
  double parts[2];
  std::memcpy(&parts[0], &seed, sizeof seed);
  std::memcpy(&parts[1], &offset, sizeof offset);
  const c10::complex<double> number(parts[0], parts[1]);
  return at::view_as_real(at::full({}, number, at::device(device).dtype(at::kComplexDouble))).view(at::kLong);
}

// int64 [2], on the device: the seed, and where in the streams of all threads the next number is. Then the generator
// stands `increment` further. While a graph is captured both are what they will be when it is replayed.
at::Tensor philox_state(int64_t increment, at::Device device) {
  TORCH_CHECK(device.is_cuda() && has_philox_state(), "there is no CUDA generator for ", device);
  const c10::DeviceGuard guard(device);
  at::Generator generator = at::globalContext().defaultGenerator(device);
  at::PhiloxCudaState state;
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    state = advance()(generator.unsafeGetGeneratorImpl(), static_cast<uint64_t>(increment));
  }
  if (!state.captured_) return written(state.seed_.val, state.offset_.val, device);
  const auto inside = static_cast<int64_t>(state.offset_intragraph_);
  return at::cat({on_card(state.seed_.ptr, device), on_card(state.offset_.ptr, device).add(inside)});
}

constexpr int64_t kWord = 0xFFFFFFFF;

// Word `part` of element e, as int32: e is the sum of its coordinates times `order`. Threads of `width` elements each
// take turns, and of the stream of a thread a turn is `words` words.
at::Tensor philox_words(const at::Tensor& state, at::IntArrayRef size, at::IntArrayRef stride, at::IntArrayRef order,
                        int64_t ahead, int64_t threads, int64_t width, int64_t words, int64_t part) {
  TORCH_CHECK(size.size() == order.size() && threads > 0 && width > 0, "no order of the elements");
  const auto options = state.options();
  at::Tensor element = at::zeros(size, options);
  for (size_t dim = 0; dim < size.size(); ++dim) {
    at::DimVector shape(size.size(), 1);
    shape[dim] = size[dim];
    element.add_(at::arange(size[dim], options).mul_(order[dim]).view(shape));
  }
  const at::Tensor group = element.floor_divide(width);
  const at::Tensor place = group.floor_divide(threads)
                               .mul_(words)
                               .add_(element.remainder(width))
                               .add_(state.select(0, 1) + (ahead + part));
  const at::Tensor counter = place.bitwise_right_shift(2), which = place.bitwise_and(3);
  at::Tensor c[4] = {counter.bitwise_and(kWord), counter.bitwise_right_shift(32).bitwise_and_(kWord),
                     group.remainder(threads), at::zeros_like(counter)};
  at::Tensor k0 = state.select(0, 0).bitwise_and(kWord);
  at::Tensor k1 = state.select(0, 0).bitwise_right_shift(32).bitwise_and_(kWord);
  for (int turn = 0; turn < 10; ++turn) {
    const at::Tensor p0 = c[0].mul(int64_t{0xD2511F53}), p1 = c[2].mul(int64_t{0xCD9E8D57});
    at::Tensor first = p1.bitwise_right_shift(32).bitwise_and_(kWord).bitwise_xor_(c[1]).bitwise_xor_(k0);
    at::Tensor third = p0.bitwise_right_shift(32).bitwise_and_(kWord).bitwise_xor_(c[3]).bitwise_xor_(k1);
    c[0] = first;
    c[1] = p1.bitwise_and(kWord);
    c[2] = third;
    c[3] = p0.bitwise_and(kWord);
    k0 = k0.add(int64_t{0x9E3779B9}).bitwise_and_(kWord);
    k1 = k1.add(int64_t{0xBB67AE85}).bitwise_and_(kWord);
  }
  at::Tensor word = c[3];
  for (int i = 2; i >= 0; --i) word = at::where(which.eq(i), c[i], word);
  constexpr int64_t kSign = int64_t{1} << 31;
  const at::Tensor narrow = word.bitwise_xor(kSign).sub_(kSign).to(at::kInt);
  if (narrow.strides() == stride) return narrow;
  return at::empty_strided(size, stride, narrow.options()).copy_(narrow);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lampwork, m) {
  m.def("has_philox_state() -> bool", TORCH_FN(has_philox_state));
  m.def("philox_state(int increment, Device device) -> Tensor", {at::Tag::nondeterministic_seeded});
  m.def(
      "philox_words(Tensor state, SymInt[] size, SymInt[] stride, int[] order, int ahead, int threads, int width, "
      "int words, int part) -> Tensor");
}

TORCH_LIBRARY_IMPL(lampwork, CompositeExplicitAutograd, m) {
  m.impl("philox_state", TORCH_FN(philox_state));
  m.impl("philox_words", TORCH_FN(philox_words));
}

}  // namespace lampwork
