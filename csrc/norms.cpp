#include "norms.h"

#include "program.h"
#include "rows.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <torch/csrc/Exceptions.h>

#include <cmath>
#include <limits>
#include <type_traits>

namespace lampwork {

namespace {

// Elements whose squares are summed in their own precision, and which are worth a thread.
constexpr int64_t kNormBlock = 16 << 10;
// Tensors of fewer bytes than this are read with the GIL held.
constexpr size_t kNormGilBytes = 32 << 10;

// Part of one tensor.
struct Block {
  char* begin;
  int64_t length;
  size_t tensor;
};

// Tensors of one dtype, each in one piece of memory.
struct Tensors {
  std::vector<at::Tensor> all;  // without the GIL the caller's list may change
  size_t bytes = 0;

  // False, with no error set, if they are not such tensors.
  bool read(PyObject* list) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
      PyObject* item = PyList_GET_ITEM(list, i);
      if (!THPVariable_Check(item)) return false;
      const at::Tensor& tensor = THPVariable_Unpack(item);
      const at::ScalarType dtype = tensor.scalar_type();
      if (!is_plain(tensor) || (dtype != at::kFloat && dtype != at::kDouble)) return false;
      if (!tensor.is_non_overlapping_and_dense() || !has_memory(tensor, tensor.nbytes())) return false;
      all.push_back(tensor);
      if (dtype != all.front().scalar_type()) return false;
      bytes += tensor.nbytes();
    }
    return !all.empty();
  }

  bool is_double() const { return all.front().scalar_type() == at::kDouble; }

  std::vector<Block> blocks(char* (*memory_of)(const at::Tensor&)) const {
    std::vector<Block> found;
    for (size_t i = 0; i < all.size(); ++i) {
      char* memory = all[i].numel() == 0 ? nullptr : memory_of(all[i]);
      for (int64_t start = 0; start < all[i].numel(); start += kNormBlock) {
        found.push_back({memory + start * static_cast<int64_t>(all[i].itemsize()),
                         std::min(kNormBlock, all[i].numel() - start), i});
      }
    }
    return found;
  }
};

// Calls `work(i)` for each block, in threads if there is enough to do.
template <typename Work>
void for_each(const std::vector<Block>& blocks, size_t bytes, const Work& work) {
  const ReleaseGil no_gil(bytes > kNormGilBytes);
  const auto count = static_cast<int64_t>(blocks.size());
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) work(static_cast<size_t>(i));
  };
  if (bytes > kNormBlock * sizeof(float) && at::get_num_threads() > 1 && !at::in_parallel_region()) {
    at::parallel_for(0, count, 1, run);
  } else {
    run(0, count);
  }
}

// The loops are compiled for each width of vectors, and the machine's is chosen when they are linked.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define LAMPWORK_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define LAMPWORK_WIDE
#endif

// Vectors of 64 bytes, four of which are at work at once: as many sums as the latency of an addition takes.
constexpr int kVectors = 4;
constexpr int kVectorBytes = 64;
template <typename T>
struct Lanes {
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  typedef T Vector __attribute__((vector_size(kVectorBytes)));
  typedef Bits Mask __attribute__((vector_size(kVectorBytes)));
  static constexpr int kCount = kVectorBytes / sizeof(T);
  static constexpr int kStep = kVectors * kCount;
};

template <typename T>
LAMPWORK_WIDE double sum_of_squares(const T* data, int64_t length) {
  using L = Lanes<T>;
  typename L::Vector sums[kVectors] = {};
  int64_t i = 0;
  for (; i + L::kStep <= length; i += L::kStep) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      typename L::Vector x;
      std::memcpy(&x, data + i + v * L::kCount, sizeof x);
      sums[v] += x * x;
    }
  }
  double total = 0;
  for (; i < length; ++i) total += static_cast<double>(T(data[i] * data[i]));
  for (const auto& sum : sums) {
    for (int lane = 0; lane < L::kCount; ++lane) total += static_cast<double>(sum[lane]);
  }
  return total;
}

// NaN if there is one among the numbers.
template <typename T>
LAMPWORK_WIDE double largest_magnitude(const T* data, int64_t length) {
  using L = Lanes<T>;
  constexpr auto kMagnitude = std::numeric_limits<typename L::Bits>::max();
  typename L::Mask largest[kVectors] = {};
  int64_t i = 0;
  typename L::Bits most = 0;
  // Without their signs the bits of numbers are in the order of the numbers, and those of nan come last.
  for (; i + L::kStep <= length; i += L::kStep) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      typename L::Mask x;
      std::memcpy(&x, data + i + v * L::kCount, sizeof x);
      x &= kMagnitude;
      largest[v] = x > largest[v] ? x : largest[v];
    }
  }
  for (; i < length; ++i) {
    typename L::Bits bits;
    std::memcpy(&bits, data + i, sizeof bits);
    most = std::max<typename L::Bits>(most, bits & kMagnitude);
  }
  for (const auto& vector : largest) {
    for (int lane = 0; lane < L::kCount; ++lane) most = std::max<typename L::Bits>(most, vector[lane]);
  }
  T found;
  std::memcpy(&found, &most, sizeof found);
  return static_cast<double>(found);
}

// The norm of the tensors' norms, each rounded to the dtype as eager rounds it.
template <typename T>
T total_of(const Tensors& tensors, bool is_max) {
  const std::vector<Block> blocks = tensors.blocks(data_of);
  std::vector<double> parts(blocks.size());
  for_each(blocks, tensors.bytes, [&](size_t i) {
    const T* data = reinterpret_cast<const T*>(blocks[i].begin);
    parts[i] = is_max ? largest_magnitude(data, blocks[i].length) : sum_of_squares(data, blocks[i].length);
  });
  if (is_max) {
    double most = 0;
    for (const double part : parts) most = part > most || part != part ? part : most;
    return static_cast<T>(most);
  }
  double squares = 0;
  for (size_t i = 0; i < blocks.size();) {
    double sum = 0;
    const size_t tensor = blocks[i].tensor;
    for (; i < blocks.size() && blocks[i].tensor == tensor; ++i) sum += parts[i];
    const T norm = std::sqrt(static_cast<T>(sum));
    squares += static_cast<double>(T(norm * norm));
  }
  return std::sqrt(static_cast<T>(squares));
}

template <typename T>
at::Tensor scalar(T value, at::ScalarType dtype) {
  at::Tensor made = at::detail::empty_cpu({}, dtype);
  *made.mutable_data_ptr<T>() = value;
  return made;
}

PyObject* total_norm(PyObject*, PyObject* args) {
  PyObject* list;
  double order;
  if (!PyArg_ParseTuple(args, "O!d:total_norm", &PyList_Type, &list, &order)) return nullptr;
  HANDLE_TH_ERRORS
  Tensors tensors;
  const bool is_max = order == std::numeric_limits<double>::infinity();
  if ((!is_max && order != 2.0) || !tensors.read(list)) Py_RETURN_NONE;
  if (is_max) {
    // Nothing has no largest number, which is an error.
    for (const at::Tensor& tensor : tensors.all) {
      if (tensor.numel() == 0) Py_RETURN_NONE;
    }
  }
  return THPVariable_Wrap(tensors.is_double() ? scalar(total_of<double>(tensors, is_max), at::kDouble)
                                              : scalar(total_of<float>(tensors, is_max), at::kFloat));
  END_HANDLE_TH_ERRORS
}

// What eager multiplies gradients by, operator by operator.
template <typename T>
T factor(T norm, double most) {
  const T wanted = T(1) / T(norm + static_cast<T>(1e-6)) * static_cast<T>(most);
  return wanted > T(1) ? T(1) : wanted;
}

template <typename T>
LAMPWORK_WIDE void multiply(T* data, int64_t length, T by) {
  using L = Lanes<T>;
  int64_t i = 0;
  for (; i + L::kCount <= length; i += L::kCount) {
    typename L::Vector x;
    std::memcpy(&x, data + i, sizeof x);
    x *= by;
    std::memcpy(data + i, &x, sizeof x);
  }
  for (; i < length; ++i) data[i] *= by;
}

template <typename T>
void scale(const Tensors& tensors, T by) {
  if (by == T(1)) {
    // The numbers stay as they are, but it is a write.
    for (const at::Tensor& tensor : tensors.all) tensor.unsafeGetTensorImpl()->bump_version();
    return;
  }
  const std::vector<Block> blocks = tensors.blocks(memory_to_write);
  for_each(blocks, tensors.bytes, [&](size_t i) {
    multiply(reinterpret_cast<T*>(blocks[i].begin), blocks[i].length, by);
  });
}

PyObject* clip_to_norm(PyObject*, PyObject* args) {
  PyObject *list, *norm;
  double most;
  if (!PyArg_ParseTuple(args, "O!Od:clip_to_norm", &PyList_Type, &list, &norm, &most)) return nullptr;
  HANDLE_TH_ERRORS
  Tensors tensors;
  if (!tensors.read(list) || !THPVariable_Check(norm)) Py_RETURN_FALSE;
  const at::Tensor& given = THPVariable_Unpack(norm);
  if (!is_plain(given) || given.dim() != 0 || given.scalar_type() != tensors.all.front().scalar_type()) {
    Py_RETURN_FALSE;
  }
  std::vector<Range> ranges;
  for (const at::Tensor& tensor : tensors.all) {
    const char* begin = data_of(tensor);
    if (tensor.numel() > 0) ranges.push_back({begin, begin + tensor.nbytes(), true});
  }
  if (overlap(ranges)) Py_RETURN_FALSE;
  if (tensors.is_double()) {
    scale(tensors, factor(*given.const_data_ptr<double>(), most));
  } else {
    scale(tensors, factor(*given.const_data_ptr<float>(), most));
  }
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

}  // namespace

PyMethodDef norm_methods[] = {
    {"total_norm", total_norm, METH_VARARGS,
     "total_norm(tensors, order): the norm of their norms, of order 2 or infinity. None if the tensors are not dense "
     "floats of one dtype, or for another order."},
    {"clip_to_norm", clip_to_norm, METH_VARARGS,
     "clip_to_norm(tensors, norm, most): multiply them by min(most / (norm + 1e-6), 1). False if it does not."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lampwork
