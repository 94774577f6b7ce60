#include "profile.h"

#include "fork_mutex.h"
#include "spans.h"

#include <torch/csrc/Exceptions.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace lampwork {

AtHand& at_hand() {
  static thread_local AtHand hand;
  return hand;
}

namespace {

enum class What : int32_t { Run, Call, Operator, Label, Backward, Compile };

// As lampwork.inspect.profile.spans reads it.
struct Seen {
  int64_t begin;  // nanoseconds of the monotonic clock
  int64_t end;
  int64_t self;   // without what is within; of a call of a program and of a compilation all of it
  int32_t what;
  int32_t of;     // number of a program or of a name
  int32_t index;  // of the instruction
  int32_t depth;
  int32_t within;  // whether it is within a call of a program or a compilation
  int32_t unused;
};
static_assert(sizeof(Seen) == 48);

// How Function._compile calls its spans.
constexpr std::string_view kCompilation = "lampwork::compile ";

bool counts_whole(const Seen& seen) {
  return seen.what == static_cast<int32_t>(What::Call) || seen.what == static_cast<int32_t>(What::Compile);
}

What what_of(const at::RecordFunction& function) {
  switch (function.scope()) {
    case at::RecordScope::BACKWARD_FUNCTION:
      return What::Backward;
    case at::RecordScope::USER_SCOPE:
      return std::string_view(function.name()).starts_with(kCompilation) ? What::Compile : What::Label;
    default:
      return What::Operator;
  }
}

// A thread keeps no more of them; some 200 MB.
constexpr size_t kMostSeen = size_t{1} << 22;

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// What one thread has seen.
struct Log {
  struct Open {
    Seen seen;
    int64_t inside = 0;
  };

  // Its depth; nothing once the log is closed.
  std::optional<int64_t> begin(const at::RecordFunction& function) {
    const std::lock_guard<ForkMutex> lock(mutex);
    if (closed) return std::nullopt;
    Open open;
    const AtHand hand = std::exchange(at_hand(), {});
    if (hand.code != nullptr) {
      open.seen.what = static_cast<int32_t>(hand.index < 0 ? What::Run : What::Call);
      open.seen.of = number_of(*hand.code);
    } else {
      open.seen.what = static_cast<int32_t>(what_of(function));
      open.seen.of = number_of(function.name());
    }
    open.seen.index = hand.index;
    open.seen.depth = static_cast<int32_t>(stack.size());
    open.seen.within = !stack.empty() && (stack.back().seen.within != 0 || counts_whole(stack.back().seen));
    open.seen.unused = 0;
    open.seen.begin = now();
    stack.push_back(open);
    return open.seen.depth;
  }

  void end(int64_t depth) {
    const int64_t time = now();
    const std::lock_guard<ForkMutex> lock(mutex);
    end_at(depth, time);
  }

  // What has not ended by itself ends with what it is within.
  void end_at(int64_t depth, int64_t time) {
    while (static_cast<int64_t>(stack.size()) > depth) {
      Open open = stack.back();
      stack.pop_back();
      open.seen.end = time;
      open.seen.self = time - open.seen.begin - open.inside;
      if (!stack.empty() && !counts_whole(stack.back().seen)) {
        stack.back().inside += time - open.seen.begin;
      }
      if (kept.seen.size() < kMostSeen) {
        kept.seen.push_back(open.seen);
      } else {
        ++kept.lost;
      }
    }
  }

  struct Kept {
    std::vector<Seen> seen;
    uint64_t lost = 0;
    std::vector<std::shared_ptr<const Code>> codes;  // dropped under the GIL
    std::vector<std::string> names;
  };

  // All of it, for Python objects to be made of: under no mutex, as they can start the garbage collector. What is open
  // ends here, and nothing begins any more: a thread may keep the log for long, and end without the GIL.
  Kept close() {
    const int64_t time = now();
    const std::lock_guard<ForkMutex> lock(mutex);
    end_at(0, time);
    closed = true;
    return std::exchange(kept, {});
  }

  int32_t number_of(const Code& code) {
    const auto [found, is_new] = programs.try_emplace(&code, static_cast<int32_t>(kept.codes.size()));
    if (is_new) kept.codes.push_back(code.shared_from_this());
    return found->second;
  }

  int32_t number_of(const char* name) {
    const auto [found, is_new] = numbers.try_emplace(name, static_cast<int32_t>(kept.names.size()));
    if (is_new) kept.names.push_back(name);
    return found->second;
  }

  ForkMutex mutex;
  bool closed = false;
  uint64_t thread = 0;
  std::vector<Open> stack;
  Kept kept;
  std::unordered_map<const Code*, int32_t> programs;  // -> place in kept.codes
  std::unordered_map<std::string, int32_t> numbers;   // -> place in kept.names
};

// The profile that runs, one at a time; 0: none.
std::atomic<uint64_t> running{0};
ForkMutex mutex;                           // of what follows; a fork() may come while any thread works
uint64_t last_running = 0;
std::vector<std::shared_ptr<Log>> logs;
at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;

struct Entered : at::ObserverContext {
  Entered(std::shared_ptr<Log> log, int64_t depth) : log(std::move(log)), depth(depth) {}
  std::shared_ptr<Log> log;
  int64_t depth;
};

struct OwnLog {
  uint64_t of = 0;
  std::shared_ptr<Log> log;
};

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
  static thread_local OwnLog own;
  const uint64_t profile = running.load(std::memory_order_acquire);
  if (profile == 0) return nullptr;
  if (own.of != profile) {
    auto log = std::make_shared<Log>();
    log->thread = at::RecordFunction::currentThreadId();
    log->kept.seen.reserve(1 << 12);
    {
      const std::lock_guard<ForkMutex> lock(mutex);
      if (running.load() != profile) return nullptr;
      logs.push_back(log);
    }
    own = {profile, std::move(log)};
  }
  const std::optional<int64_t> depth = own.log->begin(function);
  if (!depth.has_value()) return nullptr;
  return std::make_unique<Entered>(own.log, *depth);
}

void on_end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context == nullptr) return;
  const auto* entered = static_cast<Entered*>(context);
  entered->log->end(entered->depth);
}

PyObject* begin_profile(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  const std::lock_guard<ForkMutex> lock(mutex);
  if (running.load() != 0) Py_RETURN_FALSE;
  running.store(++last_running, std::memory_order_release);
  handle = at::addGlobalCallback(at::RecordFunctionCallback(on_begin, on_end)
                                     .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE,
                                              at::RecordScope::BACKWARD_FUNCTION}));
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

PyObject* end_profile(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  std::vector<std::shared_ptr<Log>> found;
  {
    const std::lock_guard<ForkMutex> lock(mutex);
    if (running.exchange(0) == 0) throw_value_error("no profile runs");
    at::removeCallback(handle);
    found.swap(logs);
  }
  py::list threads;
  for (const std::shared_ptr<Log>& log : found) {
    const Log::Kept kept = log->close();
    py::list names, programs;
    for (const std::string& name : kept.names) names.append(py::str(name));
    for (const std::shared_ptr<const Code>& code : kept.codes) programs.append(code->program);
    const py::bytes seen(reinterpret_cast<const char*>(kept.seen.data()), kept.seen.size() * sizeof(Seen));
    threads.append(py::make_tuple(log->thread, seen, names, programs, kept.lost));
  }
  return threads.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* in_span(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count < 2 || !PyUnicode_Check(args[0])) {
    return PyErr_Format(PyExc_TypeError, "in_span(name, function, *args): a name and what to call");
  }
  HANDLE_TH_ERRORS
  std::optional<Span> span;
  if (is_watched()) span.emplace(py::handle(args[0]).cast<std::string>(), at::RecordScope::USER_SCOPE);
  return PyObject_Vectorcall(args[1], args + 2, static_cast<size_t>(count - 2), nullptr);
  END_HANDLE_TH_ERRORS
}

}  // namespace

PyMethodDef profile_methods[] = {
    {"begin_profile", begin_profile, METH_NOARGS, "begin_profile() -> bool: False if one runs already."},
    {"end_profile", end_profile, METH_NOARGS,
     "end_profile() -> [(thread, spans, names, programs, lost)]: see lampwork.inspect.profile.spans."},
    {"in_span", reinterpret_cast<PyCFunction>(in_span), METH_FASTCALL,
     "in_span(name, function, *args): function(*args), which profilers see under that name."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lampwork
