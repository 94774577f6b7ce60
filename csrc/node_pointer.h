// What holds a node of autograd's graph: before torch 2.13 a std::shared_ptr, since then a c10::intrusive_ptr.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/headeronly/version.h>

#include <memory>
#include <utility>

namespace lampwork {

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13

using NodePointer = c10::intrusive_ptr<torch::autograd::Node>;

template <class T, class... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
}

#else

using NodePointer = std::shared_ptr<torch::autograd::Node>;

template <class T, class... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  // Torch's deleter: long chains of nodes would overflow the stack.
  return NodePointer(new T(std::forward<Arguments>(arguments)...), torch::autograd::deleteNode);
}

#endif

}  // namespace lampwork
