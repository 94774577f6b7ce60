#include "weight_files.h"

#include <ATen/MapAllocator.h>

#include <sys/mman.h>

#include <string_view>

namespace lampwork {

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
