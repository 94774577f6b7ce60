#include "c_library.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <unordered_map>

namespace lampwork::runtime {

namespace {

using One = double (*)(double);
using OneSingle = float (*)(float);
using Two = double (*)(double, double);
using TwoSingle = float (*)(float, float);

template <class Function>
void* address(Function function) {
  return reinterpret_cast<void*>(function);
}

const std::unordered_map<std::string_view, void*>& functions() {
  static const std::unordered_map<std::string_view, void*> known = {
      {"memcpy", address(static_cast<void* (*)(void*, const void*, size_t)>(::memcpy))},
      {"memmove", address(static_cast<void* (*)(void*, const void*, size_t)>(::memmove))},
      {"memset", address(static_cast<void* (*)(void*, int, size_t)>(::memset))},
      {"aligned_alloc", address(static_cast<void* (*)(size_t, size_t)>(::aligned_alloc))},
      {"free", address(static_cast<void (*)(void*)>(::free))},
      {"acos", address(static_cast<One>(::acos))},
      {"acosf", address(static_cast<OneSingle>(::acosf))},
      {"acosh", address(static_cast<One>(::acosh))},
      {"acoshf", address(static_cast<OneSingle>(::acoshf))},
      {"asin", address(static_cast<One>(::asin))},
      {"asinf", address(static_cast<OneSingle>(::asinf))},
      {"asinh", address(static_cast<One>(::asinh))},
      {"asinhf", address(static_cast<OneSingle>(::asinhf))},
      {"atan", address(static_cast<One>(::atan))},
      {"atanf", address(static_cast<OneSingle>(::atanf))},
      {"atanh", address(static_cast<One>(::atanh))},
      {"atanhf", address(static_cast<OneSingle>(::atanhf))},
      {"cbrt", address(static_cast<One>(::cbrt))},
      {"cbrtf", address(static_cast<OneSingle>(::cbrtf))},
      {"ceil", address(static_cast<One>(::ceil))},
      {"ceilf", address(static_cast<OneSingle>(::ceilf))},
      {"cos", address(static_cast<One>(::cos))},
      {"cosf", address(static_cast<OneSingle>(::cosf))},
      {"cosh", address(static_cast<One>(::cosh))},
      {"coshf", address(static_cast<OneSingle>(::coshf))},
      {"erf", address(static_cast<One>(::erf))},
      {"erff", address(static_cast<OneSingle>(::erff))},
      {"erfc", address(static_cast<One>(::erfc))},
      {"erfcf", address(static_cast<OneSingle>(::erfcf))},
      {"exp", address(static_cast<One>(::exp))},
      {"expf", address(static_cast<OneSingle>(::expf))},
      {"exp2", address(static_cast<One>(::exp2))},
      {"exp2f", address(static_cast<OneSingle>(::exp2f))},
      {"expm1", address(static_cast<One>(::expm1))},
      {"expm1f", address(static_cast<OneSingle>(::expm1f))},
      {"fabs", address(static_cast<One>(::fabs))},
      {"fabsf", address(static_cast<OneSingle>(::fabsf))},
      {"floor", address(static_cast<One>(::floor))},
      {"floorf", address(static_cast<OneSingle>(::floorf))},
      {"lgamma", address(static_cast<One>(::lgamma))},
      {"lgammaf", address(static_cast<OneSingle>(::lgammaf))},
      {"log", address(static_cast<One>(::log))},
      {"logf", address(static_cast<OneSingle>(::logf))},
      {"log10", address(static_cast<One>(::log10))},
      {"log10f", address(static_cast<OneSingle>(::log10f))},
      {"log1p", address(static_cast<One>(::log1p))},
      {"log1pf", address(static_cast<OneSingle>(::log1pf))},
      {"log2", address(static_cast<One>(::log2))},
      {"log2f", address(static_cast<OneSingle>(::log2f))},
      {"logb", address(static_cast<One>(::logb))},
      {"logbf", address(static_cast<OneSingle>(::logbf))},
      {"nearbyint", address(static_cast<One>(::nearbyint))},
      {"nearbyintf", address(static_cast<OneSingle>(::nearbyintf))},
      {"rint", address(static_cast<One>(::rint))},
      {"rintf", address(static_cast<OneSingle>(::rintf))},
      {"round", address(static_cast<One>(::round))},
      {"roundf", address(static_cast<OneSingle>(::roundf))},
      {"sincos", address(static_cast<void (*)(double, double*, double*)>(::sincos))},  // what sin and cos of one number become
      {"sincosf", address(static_cast<void (*)(float, float*, float*)>(::sincosf))},
      {"sin", address(static_cast<One>(::sin))},
      {"sinf", address(static_cast<OneSingle>(::sinf))},
      {"sinh", address(static_cast<One>(::sinh))},
      {"sinhf", address(static_cast<OneSingle>(::sinhf))},
      {"sqrt", address(static_cast<One>(::sqrt))},
      {"sqrtf", address(static_cast<OneSingle>(::sqrtf))},
      {"tan", address(static_cast<One>(::tan))},
      {"tanf", address(static_cast<OneSingle>(::tanf))},
      {"tanh", address(static_cast<One>(::tanh))},
      {"tanhf", address(static_cast<OneSingle>(::tanhf))},
      {"tgamma", address(static_cast<One>(::tgamma))},
      {"tgammaf", address(static_cast<OneSingle>(::tgammaf))},
      {"trunc", address(static_cast<One>(::trunc))},
      {"truncf", address(static_cast<OneSingle>(::truncf))},
      {"atan2", address(static_cast<Two>(::atan2))},
      {"atan2f", address(static_cast<TwoSingle>(::atan2f))},
      {"copysign", address(static_cast<Two>(::copysign))},
      {"copysignf", address(static_cast<TwoSingle>(::copysignf))},
      {"fdim", address(static_cast<Two>(::fdim))},
      {"fdimf", address(static_cast<TwoSingle>(::fdimf))},
      {"fmax", address(static_cast<Two>(::fmax))},
      {"fmaxf", address(static_cast<TwoSingle>(::fmaxf))},
      {"fmin", address(static_cast<Two>(::fmin))},
      {"fminf", address(static_cast<TwoSingle>(::fminf))},
      {"fmod", address(static_cast<Two>(::fmod))},
      {"fmodf", address(static_cast<TwoSingle>(::fmodf))},
      {"hypot", address(static_cast<Two>(::hypot))},
      {"hypotf", address(static_cast<TwoSingle>(::hypotf))},
      {"nextafter", address(static_cast<Two>(::nextafter))},
      {"nextafterf", address(static_cast<TwoSingle>(::nextafterf))},
      {"pow", address(static_cast<Two>(::pow))},
      {"powf", address(static_cast<TwoSingle>(::powf))},
      {"remainder", address(static_cast<Two>(::remainder))},
      {"remainderf", address(static_cast<TwoSingle>(::remainderf))},
      {"fma", address(static_cast<double (*)(double, double, double)>(::fma))},
      {"fmaf", address(static_cast<float (*)(float, float, float)>(::fmaf))},
      {"ldexp", address(static_cast<double (*)(double, int)>(::ldexp))},
      {"ldexpf", address(static_cast<float (*)(float, int)>(::ldexpf))},
  };
  return known;
}

}  // namespace

void* c_library(const std::string& name) {
  const auto found = functions().find(name);
  return found == functions().end() ? nullptr : found->second;
}

}  // namespace lampwork::runtime
