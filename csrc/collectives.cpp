// lampwork::wait: `_c10d_functional::wait_tensor`, of what a collective gives, with the operands that other processes read
// until then: so their memory is not given to something else.
#include "program.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace lampwork {

bool& communicated() {
  static thread_local bool done = false;
  return done;
}

namespace {

at::Tensor wait(const at::Tensor& pending, at::TensorList operands) {
  static const auto waited = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("_c10d_functional::wait_tensor", "")
                                 .typed<at::Tensor(const at::Tensor&)>();
  return waited.call(pending);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lampwork, m) {
  m.def("wait(Tensor pending, Tensor[] operands) -> Tensor", TORCH_FN(wait));
}

}  // namespace lampwork
