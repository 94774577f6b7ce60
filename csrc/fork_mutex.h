// A mutex that a forked child can use, whatever the other threads of its parent were doing.
#pragma once

#include <mutex>

namespace lampwork {

// fork() waits until nobody holds one, so that what they protect is whole in the child, where the holder is gone. So
// they are held for moments only, never while waiting for the GIL or for another one, nor while making or deleting
// one. Meets the requirements of std::lock_guard.
class ForkMutex {
 public:
  ForkMutex();
  ~ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  friend struct ForkMutexes;
  std::mutex mutex_;
  ForkMutex* previous_ = nullptr;
  ForkMutex* next_ = nullptr;
};

}  // namespace lampwork
