// Dtypes by their names in torch and in safetensors.
#pragma once

#include "lampwork/lampwork.h"

#include <string_view>

namespace lampwork::runtime {

struct DType {
  lw_dtype dtype;
  size_t size;
  const char* name;   // in torch
  const char* stored; // in safetensors; nullptr if it has none
};

inline constexpr DType kDTypes[] = {
    {LW_FLOAT32, 4, "float32", "F32"},
    {LW_FLOAT64, 8, "float64", "F64"},
    {LW_FLOAT16, 2, "float16", "F16"},
    {LW_BFLOAT16, 2, "bfloat16", "BF16"},
    {LW_INT8, 1, "int8", "I8"},
    {LW_INT16, 2, "int16", "I16"},
    {LW_INT32, 4, "int32", "I32"},
    {LW_INT64, 8, "int64", "I64"},
    {LW_UINT8, 1, "uint8", "U8"},
    {LW_UINT16, 2, "uint16", "U16"},
    {LW_UINT32, 4, "uint32", "U32"},
    {LW_UINT64, 8, "uint64", "U64"},
    {LW_BOOL, 1, "bool", "BOOL"},
    {LW_FLOAT8_E4M3FN, 1, "float8_e4m3fn", "F8_E4M3"},
    {LW_FLOAT8_E5M2, 1, "float8_e5m2", "F8_E5M2"},
    {LW_COMPLEX64, 8, "complex64", "C64"},
    {LW_COMPLEX128, 16, "complex128", nullptr},
};

inline const DType* find_dtype(lw_dtype dtype) {
  for (const DType& one : kDTypes) {
    if (one.dtype == dtype) return &one;
  }
  return nullptr;
}
inline const DType* find_dtype(std::string_view name) {
  for (const DType& one : kDTypes) {
    if (name == one.name) return &one;
  }
  return nullptr;
}
inline const DType* find_stored(std::string_view name) {
  for (const DType& one : kDTypes) {
    if (one.stored != nullptr && name == one.stored) return &one;
  }
  return nullptr;
}
inline size_t size_of(lw_dtype dtype) {
  const DType* found = find_dtype(dtype);
  return found == nullptr ? 0 : found->size;
}
inline const char* name_of(lw_dtype dtype) {
  const DType* found = find_dtype(dtype);
  return found == nullptr ? "no dtype" : found->name;
}

}  // namespace lampwork::runtime
