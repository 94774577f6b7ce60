// One kernel over the rows of a table of tensors: how an optimizer updates all of its parameters at once.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/python_headers.h>

#include <vector>

#include "device_rows.h"
#include "program.h"

namespace lampwork {

// Whether a tensor is strided memory of this process and nothing else: no subclass, no lazy negation, no tangent.
bool is_plain(const at::Tensor& tensor);

// The same of memory of this process or of an NVIDIA card.
bool is_plain_anywhere(const at::Tensor& tensor);

// Whether the elements of two tensors lie in memory in one order.
bool laid_out_alike(const at::Tensor& a, const at::Tensor& b);

// The count in a step tensor; false if it is no plain float tensor of one element, or not a number, which has no place
// in an order.
bool count_in(const at::Tensor& tensor, double& count);

// Add one to a step tensor.
void advance(const at::Tensor& step);

// A tensor's memory, asked for as one does to write: whoever watches it notices.
char* memory_to_write(const at::Tensor& tensor);

struct Range {
  const char* begin;
  const char* end;
  bool is_written;
};

// Whether memory that is written to belongs to two tensors. order: of the ranges by address, kept from call to call.
bool overlap(const std::vector<Range>& ranges, std::vector<size_t>& order);
inline bool overlap(const std::vector<Range>& ranges) {
  std::vector<size_t> order;
  return overlap(ranges, order);
}

// Calls of one kernel, of which each works on one row.
struct RowWork {
  KernelFunction function = nullptr;
  size_t columns = 0;
  std::vector<void*> buffers;   // row by row
  std::vector<int64_t> ends;    // of each row, in elements of all rows so far
  std::vector<int64_t> sizes;   // with 0 where the length of the row goes
  std::vector<size_t> lengths;  // ... the places of those
  RowsOnCard card;              // in place of the function

  // Takes the function or the kernel of a card, which keeps to whoever calls. Throws python_error.
  void set_code(PyObject* code);
  // In threads, if there is enough to do; on a card it is queued.
  void run() const;

 private:
  void run(int64_t begin, int64_t end) const;
};

// Rows of fewer bytes than this are worked on with the GIL held.
constexpr int64_t kGilBytes = 32 << 10;

extern PyMethodDef row_methods[];

}  // namespace lampwork
