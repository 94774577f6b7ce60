#include "rows.h"

#include "entry.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <numeric>

namespace lampwork {

namespace {

// Elements that are worth a thread.
constexpr int64_t kGrain = 16 << 10;

// The columns of a table: lists of one length, or empty ones. They own nothing: the caller's lists do.
class Table {
 public:
  // False, with an error set, if it is no tuple of lists of one length.
  bool read(PyObject* columns) {
    if (!PyTuple_Check(columns)) return refuse("the columns must be a tuple");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(columns); ++i) {
      PyObject* column = PyTuple_GET_ITEM(columns, i);
      if (!PyList_Check(column)) return refuse("a column must be a list");
      const Py_ssize_t length = PyList_GET_SIZE(column);
      if (i == 0) rows_ = length;
      if (length != 0 && length != rows_) return refuse("columns must have one length");
      columns_.push_back(column);
    }
    return true;
  }

  size_t columns() const { return columns_.size(); }
  Py_ssize_t rows() const { return rows_; }

  // nullptr where there is none.
  PyObject* at(size_t column, Py_ssize_t row) const {
    PyObject* list = columns_[column];
    if (PyList_GET_SIZE(list) <= row) return nullptr;
    PyObject* item = PyList_GET_ITEM(list, row);
    return item == Py_None ? nullptr : item;
  }

 private:
  static bool refuse(const char* what) {
    PyErr_SetString(PyExc_TypeError, what);
    return false;
  }

  c10::SmallVector<PyObject*, 8> columns_;
  Py_ssize_t rows_ = 0;
};

char letter_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return 'f';
    case at::kDouble:
      return 'd';
    case at::kHalf:
      return 'h';
    case at::kBFloat16:
      return 'b';
    default:
      return 0;
  }
}

// Of a plain tensor of a backend.
c10::DispatchKeySet keys_of(c10::BackendComponent backend) {
  return c10::DispatchKeySet(c10::DispatchKey::Dense) | c10::DispatchKeySet(backend) |
         c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView) | c10::getAutogradRelatedKeySetFromBackend(backend) |
         c10::getAutocastRelatedKeySetFromBackend(backend);
}

}  // namespace

bool is_plain(const at::Tensor& tensor) {
  static const c10::DispatchKeySet plain = at::detail::empty_cpu({0}, at::kFloat).key_set();
  return tensor.key_set() == plain && !tensor._fw_grad(0).defined();
}

bool is_plain_anywhere(const at::Tensor& tensor) {
  static const c10::DispatchKeySet on_card = keys_of(c10::BackendComponent::CUDABit);
  return is_plain(tensor) || (tensor.key_set() == on_card && !tensor._fw_grad(0).defined());
}

bool overlap(const std::vector<Range>& ranges, std::vector<size_t>& order) {
  if (order.size() != ranges.size()) {
    order.resize(ranges.size());
    std::iota(order.begin(), order.end(), 0);
  }
  const auto before = [&](size_t a, size_t b) { return ranges[a].begin < ranges[b].begin; };
  if (!std::is_sorted(order.begin(), order.end(), before)) std::sort(order.begin(), order.end(), before);
  const char *any = nullptr, *written = nullptr;  // how far the ranges so far reach
  for (const size_t number : order) {
    const Range& range = ranges[number];
    if (range.begin < written || (range.is_written && range.begin < any)) return true;
    any = std::max(any, range.end);
    if (range.is_written) written = std::max(written, range.end);
  }
  return false;
}

char* memory_to_write(const at::Tensor& tensor) {
  auto* memory = static_cast<char*>(tensor.storage().unsafeGetStorageImpl()->mutable_data());
  tensor.unsafeGetTensorImpl()->bump_version();
  return memory + tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
}

bool laid_out_alike(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  for (int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) != 1 && a.stride(i) != b.stride(i)) return false;
  }
  return true;
}

bool count_in(const at::Tensor& tensor, double& count) {
  const bool is_float = tensor.scalar_type() == at::kFloat;
  if (!is_plain(tensor) || tensor.numel() != 1 || (!is_float && tensor.scalar_type() != at::kDouble)) return false;
  if (!has_memory(tensor, tensor.itemsize())) return false;
  count = is_float ? *tensor.const_data_ptr<float>() : *tensor.const_data_ptr<double>();
  return count == count;
}

void advance(const at::Tensor& step) {
  char* count = memory_to_write(step);
  if (step.scalar_type() == at::kFloat) {
    *reinterpret_cast<float*>(count) += 1;
  } else {
    *reinterpret_cast<double*>(count) += 1;
  }
}

void RowWork::set_code(PyObject* code) {
  if (PyTuple_Check(code)) {
    card = RowsOnCard(code);
    return;
  }
  const unsigned long long address = PyLong_AsUnsignedLongLong(code);
  if (PyErr_Occurred() != nullptr) throw python_error();
  function = reinterpret_cast<KernelFunction>(address);
}

void RowWork::run() const {
  if (card.is_given()) {
    card.launch(buffers, ends, columns, sizes);
    return;
  }
  const int64_t total = ends.empty() ? 0 : ends.back();
  if (total > kGrain && at::get_num_threads() > 1 && !at::in_parallel_region()) {
    at::parallel_for(0, total, kGrain, [&](int64_t begin, int64_t end) { run(begin, end); });
  } else {
    run(0, total);
  }
}

void RowWork::run(int64_t begin, int64_t end) const {
  std::vector<int64_t> filled(sizes);
  auto row = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin());
  while (begin < end) {
    const int64_t start = row == 0 ? 0 : ends[row - 1];
    const int64_t stop = std::min(end, ends[row]);
    for (const size_t place : lengths) filled[place] = ends[row] - start;
    // The kernel writes to none of the table of pointers.
    auto* table = const_cast<void**>(buffers.data() + row * columns);
    if (begin < stop) function(table, filled.data(), begin - start, stop - start);
    begin = stop;
    ++row;
  }
}

namespace {

PyObject* group_rows(PyObject*, PyObject* args) {
  PyObject *columns, *steps;
  unsigned long long shared, scalars = 0;
  if (!PyArg_ParseTuple(args, "OO!K|K:group_rows", &columns, &PyList_Type, &steps, &shared, &scalars)) return nullptr;
  HANDLE_TH_ERRORS
  Table table;
  if (!table.read(columns)) return nullptr;
  const bool counts = PyList_GET_SIZE(steps) != 0;
  if (counts && PyList_GET_SIZE(steps) != table.rows()) Py_RETURN_NONE;
  std::map<std::tuple<std::string, double, int>, std::vector<Py_ssize_t>> groups;
  std::vector<Range> ranges;
  for (Py_ssize_t row = 0; row < table.rows(); ++row) {
    std::string letters(table.columns(), '-');
    double count = 0.0;
    PyObject* step = counts ? PyList_GET_ITEM(steps, row) : nullptr;
    if (counts && !(THPVariable_Check(step) && count_in(THPVariable_Unpack(step), count))) Py_RETURN_NONE;
    const at::Tensor* first = nullptr;
    for (size_t column = 0; column < table.columns(); ++column) {
      PyObject* item = table.at(column, row);
      if (item == nullptr && column > 0) continue;
      if (item == nullptr || !THPVariable_Check(item)) Py_RETURN_NONE;
      const at::Tensor& tensor = THPVariable_Unpack(item);
      if (!is_plain_anywhere(tensor) || letter_of(tensor.scalar_type()) == 0) Py_RETURN_NONE;
      const bool is_scalar = (scalars >> column & 1) != 0;
      if (first == nullptr) {
        first = &tensor;
        if (is_scalar || !tensor.is_non_overlapping_and_dense()) Py_RETURN_NONE;
      } else if (tensor.device() != first->device()) {
        Py_RETURN_NONE;
      } else if (is_scalar) {
        if (tensor.numel() != 1) Py_RETURN_NONE;
      } else if (!laid_out_alike(*first, tensor)) {
        Py_RETURN_NONE;
      }
      if (!has_memory(tensor, tensor.nbytes())) Py_RETURN_NONE;
      letters[column] = letter_of(tensor.scalar_type());
      if (is_scalar) letters[column] = static_cast<char>(std::toupper(letters[column]));
      const char* begin = data_of(tensor);
      const bool is_written = !is_scalar && (shared >> column & 1) == 0;
      if (tensor.numel() > 0) ranges.push_back({begin, begin + tensor.nbytes(), is_written});
    }
    const int device = first->is_cpu() ? -1 : first->device().index();
    groups[{letters, count, device}].push_back(row);
  }
  if (overlap(ranges)) Py_RETURN_NONE;
  py::list result;
  for (const auto& [key, rows] : groups) {
    result.append(py::make_tuple(std::get<0>(key), std::get<1>(key), std::get<2>(key), rows));
  }
  return result.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* run_rows(PyObject*, PyObject* args) {
  unsigned long long written;
  PyObject *code, *columns, *used, *steps, *rows, *numbers;
  if (!PyArg_ParseTuple(args, "OOO!O!O!O!K:run_rows", &code, &columns, &PyTuple_Type, &used, &PyList_Type,
                        &steps, &PyList_Type, &rows, &PyTuple_Type, &numbers, &written)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  Table table;
  if (!table.read(columns)) return nullptr;
  RowWork work;
  work.set_code(code);
  work.columns = static_cast<size_t>(PyTuple_GET_SIZE(used));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); ++i) {
    PyObject* number = PyTuple_GET_ITEM(numbers, i);
    int64_t bits = 0;
    if (number == Py_None) {
      work.lengths.push_back(work.sizes.size());
    } else {
      const double value = PyFloat_AsDouble(number);
      if (value == -1.0 && PyErr_Occurred() != nullptr) return nullptr;
      std::memcpy(&bits, &value, sizeof bits);
    }
    work.sizes.push_back(bits);
  }
  // Without the GIL the caller's lists may change: these keep the tensors alive.
  std::vector<at::Tensor> tensors;
  c10::SmallVector<size_t, 8> order;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(used); ++i) {
    order.push_back(PyLong_AsSize_t(PyTuple_GET_ITEM(used, i)));
    if (order.back() >= table.columns()) return PyErr_Format(PyExc_ValueError, "there is no such column");
  }
  int64_t total = 0, bytes = 0;
  if (work.card.is_given() && PyList_GET_SIZE(rows) != 0) {
    PyObject* param = table.at(0, PyLong_AsSsize_t(PyList_GET_ITEM(rows, 0)));
    if (param == nullptr || !THPVariable_Check(param)) return PyErr_Format(PyExc_TypeError, "not a tensor");
    const c10::Device device = THPVariable_Unpack(param).device();
    work.card.load(device.is_cpu() ? -1 : device.index());  // before anything changes
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rows); ++i) {
    const Py_ssize_t row = PyLong_AsSsize_t(PyList_GET_ITEM(rows, i));
    for (const size_t column : order) {
      PyObject* item = table.at(column, row);
      if (item == nullptr || !THPVariable_Check(item)) return PyErr_Format(PyExc_TypeError, "not a tensor");
      tensors.push_back(THPVariable_Unpack(item));
      bytes += static_cast<int64_t>(tensors.back().nbytes());
    }
    PyObject* param = table.at(0, row);  // others may be scalars
    if (param == nullptr || !THPVariable_Check(param)) return PyErr_Format(PyExc_TypeError, "not a tensor");
    total += THPVariable_Unpack(param).numel();
    work.ends.push_back(total);
    if (PyList_GET_SIZE(steps) != 0) advance(THPVariable_Unpack(PyList_GET_ITEM(steps, row)));
  }
  // What is written first: that may move memory which is read as well.
  work.buffers.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if ((written >> order[i % order.size()] & 1) != 0) work.buffers[i] = memory_to_write(tensors[i]);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (work.buffers[i] == nullptr) work.buffers[i] = data_of(tensors[i]);
  }
  try {
    const ReleaseGil no_gil(bytes > kGilBytes);
    work.run();
  } catch (const RunFailure& failure) {
    raise_runtime_failure(failure.what());
    return nullptr;
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

}  // namespace

PyMethodDef row_methods[] = {
    {"group_rows", group_rows, METH_VARARGS,
     "group_rows(columns, steps, shared, scalars=0): the rows of a table of tensors by what a kernel for them depends on: "
     "a letter for the dtype of each column, a capital one for those of tensors with one element (the bits of "
     "`scalars`); the step count; the card, or -1. None if a kernel may not run over them."},
    {"run_rows", run_rows, METH_VARARGS,
     "run_rows(code, columns, used, steps, rows, numbers, written): calls a kernel on each row, and adds one to the "
     "steps."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lampwork
