#include "weight_files.h"

#include "errors.h"
#include "storages.h"

#include <ATen/MapAllocator.h>

#include <sys/mman.h>

#include <memory>
#include <string_view>

namespace lampwork {

namespace {

void release_buffer(void* context) {
  if (Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  auto* buffer = static_cast<Py_buffer*>(context);
  PyBuffer_Release(buffer);
  delete buffer;
}

}  // namespace

at::Tensor part_of(py::handle buffer, int64_t begin, at::ScalarType dtype, at::IntArrayRef shape) {
  auto taken = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(buffer.ptr(), taken.get(), PyBUF_WRITABLE) != 0) throw python_error();
  std::unique_ptr<Py_buffer, void (*)(void*)> view(taken.release(), &release_buffer);
  const int64_t size = view->len;
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  bool fits = begin >= 0 && begin <= size;
  for (const int64_t each : shape) fits = fits && each >= 0 && !__builtin_mul_overflow(bytes, each, &bytes);
  if (!fits || bytes > size - begin) {
    throw_value_error("a buffer of " + std::to_string(size) + " bytes has no such tensor from byte " +
                      std::to_string(begin) + " on");
  }
  char* first = static_cast<char*>(view->buf) + begin;
  c10::DataPtr data(first, view.release(), &release_buffer, at::kCPU);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<size_t>(bytes),
                                                       std::move(data), nullptr, false);
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                             c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                             c10::scalarTypeToTypeMeta(dtype));
  made.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return made;
}

bool is_part(const c10::DataPtr& data) { return data.get_deleter() == &release_buffer; }

bool in_weight_file(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return false;
  const c10::StorageImpl* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr) return false;
  const at::MapAllocator* mapped = at::MapAllocator::fromDataPtr(storage->data_ptr());
  return mapped != nullptr && std::string_view(mapped->filename()).ends_with(".lampwork-weight");
}

void page_out(const at::Tensor& tensor) {
#ifdef MADV_PAGEOUT
  if (!in_weight_file(tensor)) return;
  const c10::StorageImpl* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  ::madvise(const_cast<void*>(storage->data()), storage->nbytes(), MADV_PAGEOUT);
#endif
}

}  // namespace lampwork
