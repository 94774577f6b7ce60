// Threads that share the work of a call. They look for more for a short while, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace lampwork::runtime {

class Pool {
 public:
  // `threads`: the caller of a call among them.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  using Work = void (*)(void* context, int64_t begin, int64_t end);
  // Does work over [0, extent) in up to `threads` pieces of at least `grain`, one of them or more here. One call at a time
  // has the threads: others, and those whose threads sleep and are not worth waking (`wakes`), do all of it themselves.
  void share(int64_t extent, int64_t grain, bool wakes, Work work, void* context);

 private:
  void run();
  // Takes pieces of the running job until there are none.
  void help();

  std::vector<std::thread> workers_;
  std::mutex busy_;

  // The job in progress. Written before `state_`, and left alone until each of its pieces is done: who has taken a piece
  // may read it.
  Work work_ = nullptr;
  void* context_ = nullptr;
  int64_t extent_ = 0;
  int64_t piece_ = 0;
  alignas(64) std::atomic<uint64_t> state_{0};  // the job's number (32 bits), its pieces (16), those that are taken (16)
  alignas(64) std::atomic<uint32_t> done_{0};
  alignas(64) std::atomic<uint32_t> signal_{0};  // what sleepers wait for: the job's number
  std::atomic<int> asleep_{0};
  std::atomic<bool> ends_{false};
};

}  // namespace lampwork::runtime
