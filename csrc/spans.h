// What a profiler sees of a program: a span for each run, each of its calls, and each label that the user put around
// them. They are torch's RecordFunctions, so that torch.profiler has them; ours (profile.h) listens to the same.
#pragma once

#include "program.h"

#include <ATen/record_function.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lampwork {

// The call of a program that the next RecordFunction of this thread is about; `index`: of the instruction, -1 for a run
// of all. Read and cleared by our own profiler.
struct AtHand {
  const Code* code = nullptr;
  int32_t index = -1;
};
AtHand& at_hand();

// Whether a profiler listens to this thread: what a dispatcher asks before each operator.
inline bool is_watched() { return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value(); }

// A span from here to the end of its life.
class Span {
 public:
  Span(const Code& code, int32_t index, const std::string& name, at::RecordScope scope = at::RecordScope::FUNCTION)
      : function_(scope) {
    const std::string whole = "lampwork::" + name;
    at_hand() = {&code, index};
    function_.before(std::string_view(whole));
    at_hand() = {};
  }
  explicit Span(const std::string& name, at::RecordScope scope = at::RecordScope::USER_SCOPE) : function_(scope) {
    function_.before(std::string_view(name));
  }

 private:
  at::RecordFunction function_;
};

// The labels that are open around the call at hand. Calls of one label that follow each other are in one span.
class OpenLabels {
 public:
  ~OpenLabels() { close(0); }
  void enter(const std::vector<Label>& labels) {
    size_t common = 0;
    while (common < labels.size() && common < numbers_.size() && labels[common].number == numbers_[common]) ++common;
    close(common);
    for (size_t i = common; i < labels.size(); ++i) {
      spans_.push_back(std::make_unique<Span>(labels[i].name));
      numbers_.push_back(labels[i].number);
    }
  }

 private:
  void close(size_t depth) {
    while (spans_.size() > depth) {
      spans_.pop_back();
      numbers_.pop_back();
    }
  }
  std::vector<std::unique_ptr<Span>> spans_;
  std::vector<int64_t> numbers_;
};

}  // namespace lampwork
