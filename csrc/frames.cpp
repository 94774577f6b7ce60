// The frames of Python functions that begin in a thread while it captures. What begins unasked, out of native code, and
// is the program's, must not run: it would run for the capture and never again.
#include "frames.h"

#include <pthread.h>
#include <torch/csrc/dynamo/cpython_includes.h>

#include <algorithm>
#include <utility>

namespace lampwork {

namespace {

// What is known of a code object, kept in its own slot for extras: unasked, or one of these.
enum class Home : intptr_t { unknown = 0, library = 1, program = 2 };

struct Watchers {
  PyObject* is_program = nullptr;  // (code, globals) -> bool
  PyObject* refusal = nullptr;     // (code, first argument, second) -> an exception, (what it returns,), or None
  _PyFrameEvalFunction before = nullptr;
  Py_ssize_t slot = -1;
  int threads = 0;  // how many watch now; the GIL protects all of it
};

Watchers watchers;
// How often this thread watches, and whether all may begin for now.
thread_local int watching = 0;
thread_local bool paused = false;
// The frame that is with the evaluator that was there before ours.
thread_local const _PyInterpreterFrame* passing = nullptr;

PyObject* evaluate(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing);

// -1 with an exception set, if the question raised.
int is_program(_PyInterpreterFrame* frame, PyObject* code) {
  void* extra = nullptr;
  if (_PyCode_GetExtra(code, watchers.slot, &extra) != 0) return -1;
  auto home = static_cast<Home>(reinterpret_cast<intptr_t>(extra));
  if (home == Home::unknown) {
    PyObject* answer = PyObject_CallFunctionObjArgs(watchers.is_program, code, frame->f_globals, nullptr);
    if (answer == nullptr) return -1;
    home = answer == Py_True ? Home::program : Home::library;
    Py_DECREF(answer);
    if (_PyCode_SetExtra(code, watchers.slot, reinterpret_cast<void*>(static_cast<intptr_t>(home))) != 0) return -1;
  }
  return home == Home::program;
}

// An argument of the frame, None if there is none.
PyObject* argument(_PyInterpreterFrame* frame, int number) {
  PyObject* found = number < F_CODE(frame)->co_nlocalsplus ? frame->localsplus[number] : nullptr;
  return found == nullptr ? Py_None : found;
}

enum class Verdict { run, run_unwatched, raise, answer };

// Whether the frame may begin, and whether so may what it calls; with the exception set if not. `answer` becomes what
// the call returns in its place.
Verdict judge(_PyInterpreterFrame* frame, PyObject** answer) {
  PyObject* code = reinterpret_cast<PyObject*>(F_CODE(frame));
  paused = true;
  const int program = is_program(frame, code);
  Verdict verdict = program == 0 ? Verdict::run : Verdict::raise;
  if (program > 0) {
    PyObject* said =
        PyObject_CallFunctionObjArgs(watchers.refusal, code, argument(frame, 0), argument(frame, 1), nullptr);
    if (said == Py_None) {
      verdict = Verdict::run_unwatched;
    } else if (said != nullptr && PyTuple_CheckExact(said) && PyTuple_GET_SIZE(said) == 1) {
      verdict = Verdict::answer;
      *answer = Py_NewRef(PyTuple_GET_ITEM(said, 0));
      PyErr_SetNone(PyExc_RuntimeError);
    } else if (said != nullptr) {
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(said)), said);
    }
    Py_XDECREF(said);
  }
  paused = false;
  return verdict;
}

// Run a frame with whom we found in our place. Some of those, torch.compile's among them, found us in theirs at another
// time, and hand the frame back: `evaluate` then takes it for certain.
PyObject* pass_on(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) {
  const _PyInterpreterFrame* outer = std::exchange(passing, frame);
  PyObject* result = watchers.before(thread, frame, throwing);
  passing = outer;
  return result;
}

// Whoever took our place and gave it back may have put us there when nobody watched any more.
void step_aside() {
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  if (_PyInterpreterState_GetEvalFrameFunc(interpreter) == evaluate)
    _PyInterpreterState_SetEvalFrameFunc(interpreter, watchers.before);
}

PyObject* evaluate(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) {
  if (frame == passing) return _PyEval_EvalFrameDefault(thread, frame, throwing);
  if (watchers.threads == 0) step_aside();
  // A generator that something is thrown into is being closed, by the garbage collector maybe. What runs while tracing
  // is off is an audit hook, a tracer, a profiler or what monitors: they look at the interpreter, not at the program.
  if (watching == 0 || paused || throwing || thread->tracing > 0) return pass_on(thread, frame, throwing);
  PyObject* answer = nullptr;
  const Verdict verdict = judge(frame, &answer);
  if (verdict == Verdict::run) return pass_on(thread, frame, 0);
  // A frame into which an exception is thrown ends at once, and is cleaned up as its Python version has it.
  paused = true;
  PyObject* result = pass_on(thread, frame, verdict != Verdict::run_unwatched);
  paused = false;
  if (verdict != Verdict::answer) return result;
  PyErr_Clear();
  Py_XDECREF(result);
  return answer;
}

PyObject* watch_frames(PyObject*, PyObject* args) {
  PyObject* is_program;
  PyObject* refusal;
  if (!PyArg_ParseTuple(args, "OO:watch_frames", &is_program, &refusal)) return nullptr;
  if (watchers.slot < 0) watchers.slot = _PyEval_RequestCodeExtraIndex(nullptr);
  if (watchers.slot < 0) {
    PyErr_SetString(PyExc_RuntimeError, "CPython has no room for what is kept of code objects");
    return nullptr;
  }
  Py_XSETREF(watchers.is_program, Py_NewRef(is_program));
  Py_XSETREF(watchers.refusal, Py_NewRef(refusal));
  if (watching++ == 0) ++watchers.threads;
  // At each start: another may have taken the place since, and not know of us.
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  const _PyFrameEvalFunction now = _PyInterpreterState_GetEvalFrameFunc(interpreter);
  if (now != evaluate) {
    watchers.before = now;
    _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate);
  }
  Py_RETURN_NONE;
}

PyObject* unwatch_frames(PyObject*, PyObject*) {
  if (--watching == 0 && --watchers.threads == 0) step_aside();
  Py_RETURN_NONE;
}

PyObject* pause_watch(PyObject*, PyObject* flag) {
  const bool before = paused;
  const int pausing = PyObject_IsTrue(flag);
  if (pausing < 0) return nullptr;
  paused = pausing != 0;
  return PyBool_FromLong(before);
}

// What operators, and the program's own native code, may need below the last frame that is interpreted.
constexpr size_t kReserve = 128 << 10;

// Where the stack of this thread begins, and its size.
struct Stack {
  Stack() {
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
    void* lowest = nullptr;
    if (pthread_attr_getstack(&attributes, &lowest, &size) == 0) low = static_cast<const char*>(lowest);
    pthread_attr_destroy(&attributes);
  }
  const char* low = nullptr;
  size_t size = 0;
};

PyObject* has_stack(PyObject*, PyObject*) {
  static thread_local const Stack stack;
  const auto* here = static_cast<const char*>(__builtin_frame_address(0));
  // A library may run the thread on another stack, of a size that nobody knows.
  const bool known = stack.low != nullptr && here >= stack.low && here < stack.low + stack.size;
  return PyBool_FromLong(!known || static_cast<size_t>(here - stack.low) >= std::min(kReserve, stack.size / 2));
}

}  // namespace

PyMethodDef frame_methods[] = {
    {"watch_frames", watch_frames, METH_VARARGS,
     "watch_frames(is_program, refusal): from now on, each Python function that begins in this thread and whose code "
     "`is_program(code, globals)` calls the program's raises what `refusal(code, first, second)` returns for its "
     "first two arguments. Where that is `(value,)`, its call returns the value; where None, it runs, and what it "
     "calls. Nests."},
    {"unwatch_frames", unwatch_frames, METH_NOARGS, "Ends a watch_frames."},
    {"pause_watch", pause_watch, METH_O,
     "pause_watch(yes): whether this thread's functions begin unwatched; returns what was said before."},
    {"has_stack", has_stack, METH_NOARGS,
     "has_stack(): whether 128 KiB of this thread's stack are left, or half of a smaller one."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lampwork
