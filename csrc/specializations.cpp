#include "specializations.h"

#include <algorithm>

namespace lampwork {

const Runnable* Specializations::find(at::IntArrayRef values) {
  for (size_t i = 0; i < items_.size(); ++i) {
    if (values != at::IntArrayRef(items_[i].values)) continue;
    if (i > 0) {
      const auto found = items_.begin() + static_cast<std::ptrdiff_t>(i);
      std::rotate(items_.begin(), found, found + 1);
    }
    return &items_[0].runnable;
  }
  return nullptr;
}

void Specializations::add(at::IntArrayRef values, Runnable runnable) {
  Runnable dropped;  // outlives the change: its end may run Python code
  if (items_.size() == kCapacity) {
    dropped = std::move(items_.back().runnable);
    items_.pop_back();
  }
  Item item{{values.begin(), values.end()}, std::move(runnable)};
  items_.insert(items_.begin(), std::move(item));
}

py::tuple Specializations::to_python() const {
  py::list pairs;
  const std::vector<Item> items = items_;  // making objects may run the garbage collector, and so anything
  for (const Item& item : items) {
    py::tuple values(item.values.size());
    for (size_t i = 0; i < item.values.size(); ++i) values[i] = item.values[i];
    pairs.append(py::make_tuple(values, item.runnable.program));
  }
  return py::tuple(pairs);
}

int Specializations::visit(visitproc visit, void* arg) const {
  for (const Item& item : items_) Py_VISIT(item.runnable.program.ptr());
  return 0;
}

void Specializations::clear() {
  std::vector<Item> items;
  items.swap(items_);
}

}  // namespace lampwork
