// Random numbers of torch's own CPU stream, bit for bit: the operators lampwork::uniform, normal, bernoulli, randint,
// exponential and race draw what ATen's kernels would draw, and leave the generator as they would.
//
// ATen draws one number at a time: a call of the generator, a step of mt19937, a conversion. Here a block of 624 numbers
// is made at once, in vectors, and converted in vectors: 4 to 20 times as fast. Before a distribution is used for the first
// time in a process it is compared with ATen's; where that computes something else (another version, another
// processor), ATen's is called.
#include "vectors.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/DistributionsHelper.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#if LAMPWORK_X86
// The vector functions that ATen's own normal_fill is made of, compiled as it compiles them.
#define CPU_CAPABILITY_AVX2
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#include <ATen/native/cpu/avx_mathfun.h>
#pragma GCC pop_options
#endif

#pragma GCC optimize("O3")

namespace lampwork {

namespace {

constexpr int kState = at::MERSENNE_STATE_N;
constexpr int kShift = at::MERSENNE_STATE_M;
constexpr int64_t kBlock = 2048;  // 32-bit numbers that are drawn, then converted: 8 KiB, of the first-level cache

inline __attribute__((always_inline)) uint32_t twisted(uint32_t u, uint32_t v) {
  return (((u & at::UMASK) | (v & at::LMASK)) >> 1) ^ ((0u - (v & 1u)) & at::MATRIX_A);
}

// The next 624 numbers of the state in place of these. No number depends on one of the 226 before it.
LAMPWORK_CLONES void next_state(uint32_t* state) {
  constexpr int kFirst = kState - kShift;
  constexpr int kStep = 224;
  for (int i = 0; i < kFirst; ++i) state[i] = state[i + kShift] ^ twisted(state[i], state[i + 1]);
  for (int from = kFirst; from < kState - 1; from += kStep) {
    const int until = from + kStep < kState - 1 ? from + kStep : kState - 1;
    uint32_t* here = state + from;
    const uint32_t* before = here - kFirst;
#pragma GCC ivdep
    for (int i = 0; i < until - from; ++i) here[i] = before[i] ^ twisted(here[i], here[i + 1]);
  }
  state[kState - 1] = state[kShift - 1] ^ twisted(state[kState - 1], state[0]);
}

LAMPWORK_CLONES void temper(const uint32_t* __restrict__ state, uint32_t* __restrict__ out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t y = state[i];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    y ^= y >> 18;
    out[i] = y;
  }
}

// The stream of a generator, taken out of it for as long as this lives.
class Stream {
 public:
  explicit Stream(at::CPUGeneratorImpl& generator)
      : generator_(generator), lock_(generator.mutex_), engine_(generator.engine()), data_(engine_.data()) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  ~Stream() {
    engine_.set_data(data_);
    generator_.set_engine(engine_);
  }

  // Draws `count` numbers of 32 bits. `left_` is one more than the numbers that the state still holds.
  void draw(uint32_t* out, int64_t count) {
    while (count > 0) {
      if (data_.left_ == 1) {
        next_state(data_.state_.data());
        data_.left_ = kState + 1;
        data_.next_ = 0;
      }
      const int64_t some = std::min<int64_t>(count, data_.left_ - 1);
      temper(data_.state_.data() + data_.next_, out, some);
      data_.left_ -= static_cast<int>(some);
      data_.next_ += static_cast<uint32_t>(some);
      out += some;
      count -= some;
    }
  }

 private:
  at::CPUGeneratorImpl& generator_;
  std::lock_guard<std::mutex> lock_;
  at::mt19937 engine_;
  at::mt19937_data_pod data_;
};

at::CPUGeneratorImpl& generator() {
  return *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

// convert(numbers, first, count) for the results [first, first + count), each of `width` numbers of 32 bits.
template <typename Convert>
void in_blocks(at::CPUGeneratorImpl& from, int64_t results, int width, const Convert& convert) {
  alignas(64) uint32_t numbers[kBlock];
  Stream stream(from);
  const int64_t most = kBlock / width;
  for (int64_t first = 0; first < results; first += most) {
    const int64_t count = std::min(most, results - first);
    stream.draw(numbers, count * width);
    convert(numbers, first, count);
  }
}

at::Tensor empty(at::IntArrayRef size, at::ScalarType dtype) {
  return at::empty(size, at::TensorOptions().dtype(dtype).device(at::kCPU));
}

// --- uniform -----------------------------------------------------------------------------------------------------

// 2**-24 times the lower 24 bits, between low and high. One rounding for product and sum, as ATen's compiler has it
// where the processor can: the comparison with ATen tells whether that is so.
LAMPWORK_CLONES void to_floats(const uint32_t* __restrict__ numbers, float* __restrict__ out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(static_cast<int32_t>(numbers[i] & 0xffffff)) * 0x1p-24f;
}

LAMPWORK_CLONES void between(float* __restrict__ out, int64_t count, float low, float high) {
  const float width = high - low;
  for (int64_t i = 0; i < count; ++i) {
    const float value = std::fma(out[i], width, low);
    out[i] = value == high ? low : value;
  }
}

// 2**-53 times the lower 53 bits of two numbers, exactly; the first one is the upper half.
inline __attribute__((always_inline)) double fraction(uint32_t upper, uint32_t lower) {
  const double high = static_cast<int32_t>(upper & 0x1fffff);
  const double low = static_cast<double>(static_cast<int32_t>(lower ^ 0x80000000u)) + 0x1p31;
  return (high * 0x1p32 + low) * 0x1p-53;
}

LAMPWORK_CLONES void to_doubles(const uint32_t* __restrict__ numbers, double* __restrict__ out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = fraction(numbers[2 * i], numbers[2 * i + 1]);
}

LAMPWORK_CLONES void between(double* __restrict__ out, int64_t count, double low, double high) {
  const double width = high - low;
  for (int64_t i = 0; i < count; ++i) {
    const double value = std::fma(out[i], width, low);
    out[i] = value == high ? low : value;
  }
}

void own_uniform(at::Tensor& out, double low, double high, at::CPUGeneratorImpl& from) {
  const bool plain = low == 0 && high == 1;
  if (out.scalar_type() == at::kDouble) {
    auto* data = out.data_ptr<double>();
    in_blocks(from, out.numel(), 2, [&](const uint32_t* numbers, int64_t first, int64_t count) {
      to_doubles(numbers, data + first, count);
      if (!plain) between(data + first, count, low, high);
    });
  } else {
    auto* data = out.data_ptr<float>();
    in_blocks(from, out.numel(), 1, [&](const uint32_t* numbers, int64_t first, int64_t count) {
      to_floats(numbers, data + first, count);
      if (!plain) between(data + first, count, static_cast<float>(low), static_cast<float>(high));
    });
  }
}

// --- normal ------------------------------------------------------------------------------------------------------

#if LAMPWORK_X86
#pragma GCC push_options
#pragma GCC target("avx2,fma")
// Box and Muller's transformation of each 16 numbers, in place.
void transform_16(float* data, int64_t count, float mean, float std) {
  const __m256 means = _mm256_set1_ps(mean), stds = _mm256_set1_ps(std);
  const __m256 two_pi = _mm256_set1_ps(2.0f * c10::pi<double>), one = _mm256_set1_ps(1.0f);
  const __m256 minus_two = _mm256_set1_ps(-2.0f);
  for (int64_t i = 0; i + 16 <= count; i += 16) {
    const __m256 u1 = _mm256_sub_ps(one, _mm256_loadu_ps(data + i));
    const __m256 radius = _mm256_sqrt_ps(_mm256_mul_ps(minus_two, log256_ps(u1)));
    const __m256 theta = _mm256_mul_ps(two_pi, _mm256_loadu_ps(data + i + 8));
    __m256 sine, cosine;
    sincos256_ps(theta, &sine, &cosine);
    _mm256_storeu_ps(data + i, _mm256_fmadd_ps(_mm256_mul_ps(radius, cosine), stds, means));
    _mm256_storeu_ps(data + i + 8, _mm256_fmadd_ps(_mm256_mul_ps(radius, sine), stds, means));
  }
}
#pragma GCC pop_options

bool can_transform() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
void transform_16(float*, int64_t, float, float) {}
bool can_transform() { return false; }
#endif

// As ATen does: whole groups of 16, and for the rest the last 16 once more.
void own_normal(at::Tensor& out, double mean, double std, at::CPUGeneratorImpl& from) {
  auto* data = out.data_ptr<float>();
  const auto by = [&](float* at, const uint32_t* numbers, int64_t count) {
    to_floats(numbers, at, count);
    transform_16(at, count, static_cast<float>(mean), static_cast<float>(std));
  };
  const int64_t size = out.numel(), rest = size % 16;
  in_blocks(from, size - rest, 1,
            [&](const uint32_t* numbers, int64_t first, int64_t count) { by(data + first, numbers, count); });
  if (rest == 0) return;
  // The numbers of the rest are drawn, though they are replaced.
  in_blocks(from, rest + 16, 1, [&](const uint32_t* numbers, int64_t, int64_t) { by(data + size - 16, numbers + rest, 16); });
}

// --- bernoulli, whole numbers --------------------------------------------------------------------------------------

// Whether 2**-53 times each number is below p: whether the number is below `limit`, p * 2**53 rounded up.
LAMPWORK_CLONES void below(const uint32_t* __restrict__ numbers, bool* __restrict__ out, int64_t count, int64_t limit) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t number =
        (static_cast<int64_t>(numbers[2 * i] & 0x1fffff) << 32) | static_cast<int64_t>(numbers[2 * i + 1]);
    out[i] = number < limit;
  }
}

void own_bernoulli(at::Tensor& out, double p, at::CPUGeneratorImpl& from) {
  auto* data = out.data_ptr<bool>();
  const auto limit = static_cast<int64_t>(std::ceil(p * 0x1p53));
  in_blocks(from, out.numel(), 2, [&](const uint32_t* numbers, int64_t first, int64_t count) {
    below(numbers, data + first, count, limit);
  });
}

LAMPWORK_CLONES bool below(const uint32_t* __restrict__ numbers, const float* __restrict__ p, bool* __restrict__ out,
                           int64_t count) {
  int wrong = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float number = static_cast<float>(static_cast<int32_t>(numbers[i] & 0xffffff)) * 0x1p-24f;
    out[i] = number < p[i];
    wrong |= !(p[i] >= 0.0f && p[i] <= 1.0f);
  }
  return wrong == 0;
}

void own_bernoulli(at::Tensor& out, const at::Tensor& p, at::CPUGeneratorImpl& from) {
  auto* data = out.data_ptr<bool>();
  const auto* share = p.const_data_ptr<float>();
  in_blocks(from, out.numel(), 1, [&](const uint32_t* numbers, int64_t first, int64_t count) {
    TORCH_CHECK(below(numbers, share + first, data + first, count), "Expected p_in >= 0 && p_in <= 1 to be true");
  });
}

// low + number % range. The remainder by way of a product with the reciprocal, rounded up: exact for 32-bit numbers
// (Granlund and Montgomery, Division by invariant integers using multiplication, 1994).
LAMPWORK_CLONES void remainders(const uint32_t* __restrict__ numbers, int64_t* __restrict__ out, int64_t count,
                                uint32_t range, uint32_t magic, int shift, int64_t low) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t number = numbers[i];
    const auto high = static_cast<uint32_t>((static_cast<uint64_t>(number) * magic) >> 32);
    const uint32_t quotient = (((number - high) >> 1) + high) >> shift;
    out[i] = static_cast<int64_t>(static_cast<uint64_t>(number - quotient * range)) + low;
  }
}

void own_randint(at::Tensor& out, int64_t low, int64_t high, at::CPUGeneratorImpl& from) {
  auto* data = out.data_ptr<int64_t>();
  const auto range = static_cast<uint32_t>(static_cast<uint64_t>(high) - static_cast<uint64_t>(low));
  int bits = 0;
  while ((uint64_t{1} << bits) < range) ++bits;
  const auto magic = static_cast<uint32_t>((((uint64_t{1} << 32) * ((uint64_t{1} << bits) - range)) / range) + 1);
  in_blocks(from, out.numel(), 1, [&](const uint32_t* numbers, int64_t first, int64_t count) {
    if (range == 1) {
      std::fill_n(data + first, count, low);
    } else {
      remainders(numbers, data + first, count, range, magic, bits - 1, low);
    }
  });
}

// --- exponential ---------------------------------------------------------------------------------------------------

// The logarithm of 0 < x <= 1 with an error below 2 ulp, after fdlibm's e_log.c (Sun Microsystems, 1993): x = 2**k * (1 + f)
// with sqrt(1/2) <= 1 + f < sqrt(2), log(1 + f) = f - f * f / 2 + s * (f * f / 2 + R(s)) for s = f / (2 + f).
inline __attribute__((always_inline)) double logarithm(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits += 0x3ff0000000000000u - 0x3fe6a09e00000000u;
  // The exponent as a double without an instruction for 64-bit integers: into the low bits of 2**52.
  const uint64_t exponent = (bits >> 52) | 0x4330000000000000u;
  double k;
  std::memcpy(&k, &exponent, sizeof k);
  k -= 0x1p52 + 1023;
  bits = (bits & 0x000fffffffffffffu) + 0x3fe6a09e00000000u;
  double m;
  std::memcpy(&m, &bits, sizeof m);
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s, w = z * z, half = 0.5 * f * f;
  const double odd = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double even = z * (6.666666666666735130e-01 +
                           w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  return k * 6.93147180369123816490e-01 -
         ((half - (s * (half + odd + even) + k * 1.90821492927058770002e-10)) - f);
}

// -log(1 - u) * scale as floats. Whether some result lies so near to the middle of two floats that the error of the
// logarithm could matter.
LAMPWORK_CLONES bool exponentials(const uint32_t* __restrict__ numbers, float* __restrict__ out, int64_t count,
                                  double scale) {
  int unsure = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double value = scale * logarithm(1.0 - fraction(numbers[2 * i], numbers[2 * i + 1]));
    const double error = value * 0x1p-49;
    const auto low = static_cast<float>(value - error), high = static_cast<float>(value + error);
    out[i] = low;
    unsure |= low != high;
  }
  return unsure == 0;
}

void own_exponential(at::Tensor& out, double lambda, at::CPUGeneratorImpl& from) {
  auto* data = out.data_ptr<float>();
  const double scale = -1.0 / lambda;
  in_blocks(from, out.numel(), 2, [&](const uint32_t* numbers, int64_t first, int64_t count) {
    if (exponentials(numbers, data + first, count, scale)) return;
    for (int64_t i = 0; i < count; ++i) {
      data[first + i] = static_cast<float>(scale * std::log1p(-fraction(numbers[2 * i], numbers[2 * i + 1])));
    }
  });
}

// --- operators -------------------------------------------------------------------------------------------------------

// Whether `own` gives what `aten` gives, and leaves the generator where it does.
template <typename Own, typename Aten>
bool agree(at::ScalarType dtype, const Own& own, const Aten& aten) {
  constexpr int64_t kSize = 4099;
  at::Generator ours = at::detail::createCPUGenerator(20), theirs = at::detail::createCPUGenerator(20);
  at::Tensor a = empty({kSize}, dtype), b = empty({kSize}, dtype);
  auto& mine = *at::check_generator<at::CPUGeneratorImpl>(ours);
  own(a, mine);
  aten(b, theirs);
  if (std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) != 0) return false;
  return mine.random() == at::check_generator<at::CPUGeneratorImpl>(theirs)->random();
}

template <typename scalar>
bool uniform_agrees() {
  return agree(
      c10::CppTypeToScalarType<scalar>::value,
      [](at::Tensor& out, auto& from) { own_uniform(out, -0.7, 1.9, from); },
      [](at::Tensor& out, const at::Generator& from) { out.uniform_(-0.7, 1.9, from); });
}

at::Tensor uniform(at::IntArrayRef size, double low, double high, at::ScalarType dtype) {
  at::Tensor out = empty(size, dtype);
  static const bool floats = uniform_agrees<float>(), doubles = uniform_agrees<double>();
  const bool plain = low == 0 && high == 1;
  const bool own = dtype == at::kFloat ? floats || plain : dtype == at::kDouble && (doubles || plain);
  // Bounds that uniform_ refuses are for it to refuse.
  if (!own || !(low <= high) || !(high - low <= (dtype == at::kFloat ? 3e38 : 1e308))) return out.uniform_(low, high);
  own_uniform(out, low, high, generator());
  return out;
}

at::Tensor normal(at::IntArrayRef size, double mean, double std, at::ScalarType dtype) {
  at::Tensor out = empty(size, dtype);
  static const bool same = can_transform() && agree(
      at::kFloat, [](at::Tensor& out, auto& from) { own_normal(out, 0.3, 1.7, from); },
      [](at::Tensor& out, const at::Generator& from) { out.normal_(0.3, 1.7, from); });
  if (!same || dtype != at::kFloat || out.numel() < 16 || !(std >= 0)) return out.normal_(mean, std);
  own_normal(out, mean, std, generator());
  return out;
}

at::Tensor bernoulli(at::IntArrayRef size, double p) {
  at::Tensor out = empty(size, at::kBool);
  static const bool same = agree(
      at::kBool, [](at::Tensor& out, auto& from) { own_bernoulli(out, 0.3, from); },
      [](at::Tensor& out, const at::Generator& from) { out.bernoulli_(0.3, from); });
  if (!same || !(p >= 0 && p <= 1)) return out.bernoulli_(p);
  own_bernoulli(out, p, generator());
  return out;
}

at::Tensor bernoulli_of(const at::Tensor& p) {
  at::Tensor out = empty(p.sizes(), at::kBool);
  static const bool same = agree(
      at::kBool,
      [](at::Tensor& out, auto& from) { own_bernoulli(out, at::full(out.sizes(), 0.3, at::kFloat), from); },
      [](at::Tensor& out, const at::Generator& from) {
        out.bernoulli_(at::full(out.sizes(), 0.3, at::kFloat), from);
      });
  if (!same || p.scalar_type() != at::kFloat || !p.is_contiguous()) return out.bernoulli_(p);
  own_bernoulli(out, p, generator());
  return out;
}

at::Tensor randint(at::IntArrayRef size, int64_t low, int64_t high) {
  at::Tensor out = empty(size, at::kLong);
  static const bool same = agree(
      at::kLong, [](at::Tensor& out, auto& from) { own_randint(out, -3, 96, from); },
      [](at::Tensor& out, const at::Generator& from) { out.random_(-3, 96, from); });
  // From 2**28 numbers on ATen draws 64 bits for each.
  const bool fits = low < high && static_cast<uint64_t>(high) - static_cast<uint64_t>(low) < (uint64_t{1} << 28);
  if (!same || !fits) return out.random_(low, high);
  own_randint(out, low, high, generator());
  return out;
}

at::Tensor exponential(at::IntArrayRef size, double lambda, at::ScalarType dtype) {
  at::Tensor out = empty(size, dtype);
  static const bool same = agree(
      at::kFloat, [](at::Tensor& out, auto& from) { own_exponential(out, 1.3, from); },
      [](at::Tensor& out, const at::Generator& from) { out.exponential_(1.3, from); });
  // Results below the normal floats are rounded otherwise: lambdas that could bring them are ATen's.
  if (!same || dtype != at::kFloat || !(lambda > 1e-10 && lambda < 1e10)) return out.exponential_(lambda);
  own_exponential(out, lambda, generator());
  return out;
}

LAMPWORK_CLONES bool divide(float* __restrict__ out, const float* __restrict__ p, int64_t count) {
  int wrong = 0;
  for (int64_t i = 0; i < count; ++i) {
    wrong |= !(p[i] >= 0.0f && p[i] < INFINITY);
    out[i] = p[i] / out[i];
  }
  return wrong == 0;
}

// p over exponential numbers, of which multinomial(p, 1) takes the largest of a row.
at::Tensor race(const at::Tensor& p) {
  TORCH_CHECK((p.dim() == 1 || p.dim() == 2) && p.numel() > 0 && p.scalar_type() == at::kFloat, "not raced");
  at::Tensor out = exponential(p.sizes(), 1.0, at::kFloat);
  const at::Tensor rows = p.contiguous();
  const auto* share = rows.const_data_ptr<float>();
  const int64_t size = p.size(-1);
  for (int64_t first = 0; first < p.numel(); first += size) {
    TORCH_CHECK(divide(out.mutable_data_ptr<float>() + first, share + first, size),
                "probability tensor contains either `inf`, `nan` or element < 0");
    TORCH_CHECK(std::any_of(share + first, share + first + size, [](float each) { return each != 0; }),
                "invalid multinomial distribution (sum of probabilities <= 0)");
  }
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lampwork, m) {
  m.def("uniform(int[] size, float low, float high, ScalarType dtype) -> Tensor", TORCH_FN(uniform));
  m.def("normal(int[] size, float mean, float std, ScalarType dtype) -> Tensor", TORCH_FN(normal));
  m.def("bernoulli(int[] size, float p) -> Tensor", TORCH_FN(bernoulli));
  m.def("bernoulli_of(Tensor p) -> Tensor", TORCH_FN(bernoulli_of));
  m.def("randint(int[] size, int low, int high) -> Tensor", TORCH_FN(randint));
  m.def("exponential(int[] size, float lambd, ScalarType dtype) -> Tensor", TORCH_FN(exponential));
  m.def("race(Tensor p) -> Tensor", TORCH_FN(race));
}

}  // namespace lampwork
