#include "fork_mutex.h"

#include <pthread.h>

namespace lampwork {

// All mutexes that there are, and the hooks of fork().
struct ForkMutexes {
  std::mutex mutex;
  ForkMutex* first = nullptr;

  ForkMutexes() { pthread_atfork(&before, &after, &after); }

  // Never destroyed: programs may be deleted while the process exits.
  static ForkMutexes& all() {
    static auto* made = new ForkMutexes();
    return *made;
  }

  static void before() {
    all().mutex.lock();
    for (ForkMutex* one = all().first; one != nullptr; one = one->next_) one->mutex_.lock();
  }

  static void after() {
    for (ForkMutex* one = all().first; one != nullptr; one = one->next_) one->mutex_.unlock();
    all().mutex.unlock();
  }

  void add(ForkMutex* one) {
    std::lock_guard<std::mutex> lock(mutex);
    one->next_ = first;
    if (first != nullptr) first->previous_ = one;
    first = one;
  }

  void remove(ForkMutex* one) {
    std::lock_guard<std::mutex> lock(mutex);
    (one->previous_ == nullptr ? first : one->previous_->next_) = one->next_;
    if (one->next_ != nullptr) one->next_->previous_ = one->previous_;
  }
};

ForkMutex::ForkMutex() { ForkMutexes::all().add(this); }

ForkMutex::~ForkMutex() { ForkMutexes::all().remove(this); }

}  // namespace lampwork
