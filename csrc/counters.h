// Words on a card that the blocks of a kernel count in, as to find which of them comes last.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>

#include "driver.h"

namespace lampwork {

// Words that are zero whenever a kernel of theirs starts: all that count in them are queued on one stream, and each
// leaves them as it found them.
class Counters {
 public:
  // At least `count` words for kernels that are queued on `stream`, the current one of `device`, as long as this object
  // lives. The same ones for all calls on a stream; a capture has its own, which its graph sets to zero. Needs the
  // device's context, and no GIL. Throws what the allocator throws; an error of the driver leaves this object empty.
  CUresult take(const Driver& driver, c10::Device device, CUstream stream, bool captures, size_t count);

  CUdeviceptr address() const { return reinterpret_cast<CUdeviceptr>(words_->memory.get()); }
  explicit operator bool() const { return words_ != nullptr; }

 private:
  struct Words {
    c10::DataPtr memory;
    size_t count;
  };
  struct Kept;

  static CUresult make(const Driver& driver, c10::Device device, CUstream stream, size_t count,
                       std::shared_ptr<const Words>& made);

  std::shared_ptr<const Words> words_;
};

}  // namespace lampwork
