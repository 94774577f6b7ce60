#include "pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <system_error>

namespace lampwork::runtime {

namespace {

// Being woken takes 40 to 100 us: for so long threads look for work before they sleep.
constexpr auto kAwake = std::chrono::microseconds(200);
constexpr int kMostThreads = 1024;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace

Pool::Pool(int threads) {
  threads = std::clamp(threads, 1, kMostThreads);
  try {
    for (int i = 1; i < threads; ++i) {
      workers_.emplace_back([this] { run(); });
      pthread_setname_np(workers_.back().native_handle(), "lampwork");
    }
  } catch (const std::system_error&) {
    // The system has no more threads: those that there are do the work.
  }
}

Pool::~Pool() {
  ends_.store(true);
  signal_.fetch_add(1);
  signal_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::help() {
  uint64_t state = state_.load(std::memory_order_acquire);
  for (;;) {
    const uint64_t pieces = state >> 16 & 0xFFFF, taken = state & 0xFFFF;
    if (taken >= pieces) return;
    if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    const int64_t begin = static_cast<int64_t>(taken) * piece_;
    work_(context_, begin, std::min(begin + piece_, extent_));
    done_.fetch_add(1, std::memory_order_release);
    state = state_.load(std::memory_order_acquire);
  }
}

void Pool::run() {
  uint32_t seen = 0;
  while (!ends_.load(std::memory_order_relaxed)) {
    const auto until = std::chrono::steady_clock::now() + kAwake;
    uint32_t now = signal_.load(std::memory_order_acquire);
    for (unsigned turn = 0; now == seen; ++turn) {
      pause();
      if (turn % 64 == 63 && std::chrono::steady_clock::now() > until) break;
      now = signal_.load(std::memory_order_acquire);
    }
    if (now == seen) {
      asleep_.fetch_add(1);
      signal_.wait(seen);
      asleep_.fetch_sub(1);
      continue;
    }
    seen = now;
    help();
  }
}

void Pool::share(int64_t extent, int64_t grain, bool wakes, Work work, void* context) {
  const int64_t worth = extent / grain + (extent % grain != 0 ? 1 : 0);
  const int64_t pieces = std::min<int64_t>(worth, threads());
  if (pieces < 2 || (!wakes && asleep_.load(std::memory_order_relaxed) == static_cast<int>(workers_.size()))) {
    work(context, 0, extent);
    return;
  }
  const std::unique_lock<std::mutex> mine(busy_, std::try_to_lock);
  if (!mine.owns_lock()) {
    work(context, 0, extent);
    return;
  }
  work_ = work;
  context_ = context;
  extent_ = extent;
  piece_ = (extent + pieces - 1) / pieces;
  const int64_t count = (extent + piece_ - 1) / piece_;
  done_.store(0, std::memory_order_relaxed);
  const uint64_t number = (state_.load(std::memory_order_relaxed) >> 32) + 1;
  state_.store(number << 32 | static_cast<uint64_t>(count) << 16, std::memory_order_release);
  signal_.fetch_add(1, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst) > 0) signal_.notify_all();
  help();
  for (unsigned turn = 0; done_.load(std::memory_order_acquire) != static_cast<uint32_t>(count); ++turn) {
    if (turn < 10000) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace lampwork::runtime
