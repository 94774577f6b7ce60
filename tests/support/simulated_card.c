// A card without a card, for tests: the threads of a block are fibers, run in an order drawn by chance from wait to
// wait, and blocks come one after the other; those of a cluster are run together, each with shared memory of its own.
// What PTX leaves undefined or forbids ends the kernel with a message: threads that wait for ones that do not come,
// memory that is out of reach or not aligned, shared memory that is read before it is written, two threads that reach a
// byte with no barrier between them, one of them writing, and a byte that is updated (atomically) and reached otherwise
// as well. What a thread copies to shared memory behind its back (cp.async)
// is there when it has waited for it: until then nobody may reach where it goes. What a warpgroup multiplies (wgmma) is
// read until it has waited for it: until then nobody may write there, and the sums are no numbers. What a block stored
// another one may reach if both counted with one counter, the one behind a fence and the other before one: barriers of
// the blocks carry it to the fence, and from the other one on.
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { kStack = 64 << 10, kMostThreads = 8192, kWarp = 32, kGroup = 128 };
enum { kSharedAt = 1040 };  // where shared memory starts, of simulated.py
enum Status { kOk, kAsserted, kStuck, kForbidden };
enum State { kRuns, kWaits, kEnded };
enum Kind { kBfly, kUp, kIdx, kWarpBarrier, kBlockBarrier, kMatrices, kTransposed, kBf16, kF16, kTf32, kArrival,
            kCluster, kGroupBf16, kGroupF16 };  // simulated.py's
enum { kNobody = -1, kSeveral = -2, kUpdated = INT32_MIN };  // below kSeveral: several of a warp
enum Touch { kLoads, kStores, kUpdates };                     // simulated.py's numbers

typedef struct {
  char *to;
  const char *from;
  int32_t bytes, copied, site, group;
} Copy;

typedef struct {
  jmp_buf place;
  ucontext_t beginning;
  int started;
  int32_t state, kind, site;
  uint32_t members, value, by, bounds;
  int32_t epoch, block_epoch;  // how many barriers it has passed, and how many of the whole block
  int32_t arrived, passed;     // at barriers of the cluster: how often it has come there, and gone on
  int32_t fenced, counted;     // block_epoch at its last fence, 0 for none, and the counter that it counted with since
  uint32_t words[6];           // what it gives to an instruction of its warp
  float sums[4];
  union {
    uint32_t words[4];
    float sums[4];
  } result;
  Copy *copies;  // those that it has not waited for
  int32_t copy_count, copy_room, group;
  // Of its warpgroup's products: their sums, how often they were multiplied, the groups of products that it has made
  // and those that it has waited for, whether there are products since the last group, whether numbers were put to
  // registers since the last fence; and how often it has shown what it wrote to them.
  float registers[kGroup];
  int32_t version, products, waited, is_open, is_put, shown;
  Copy *reads;  // what products read, of those who read it on behalf of all: until they have waited
  int32_t read_count, read_room;
} Thread;

typedef struct {
  int32_t all, block, arrived;
} Epoch;

// Who wrote a byte last, and who has read it since; threads and groups are counted over all blocks. A reading group below
// kSeveral: several of a block. reading_block: -2 if there are several. pending: how many copies are on their way to it.
// multiplied: how many products read it. shown: how often its writer had shown what it wrote to products by then.
typedef struct {
  int32_t writer, reader, reading_group, reading_block, pending, multiplied, shown;
  Epoch written, read;
} Trace;

typedef struct {
  char *start;
  int64_t bytes;
  Trace *traces;
} Region;

typedef struct {
  void (*entry)(void **);
  void **parameters;
  int32_t x, y, blocks, group, cluster;  // threads of a block, blocks, threads of a group, blocks of a cluster
  char *shared;                          // all of shared memory of a block, some of which is out of reach
  int64_t shared_bytes;                  // between that of two blocks of a cluster
  Region *regions;                       // those of shared memory first, of one block after the other
  int32_t region_count, shared_regions;
  int32_t is_open;  // whether memory outside of the regions is in reach
  uint64_t seed;
  uint32_t *counters;
  int64_t counter_count;
} Launch;

// A kernel that is called as a function of this CPU.
typedef struct {
  Launch launch;
  int32_t buffers, sizes, per_block;
  uint32_t *counters;
} Function;

// What of another block the running one sees: all that was stored before that block's barrier of this number, in the
// thread that found it at once, and in others after the barrier that follows.
typedef struct {
  int32_t until, thread, since;
} Seen;

static Thread threads[kMostThreads];
static Seen *seen;         // by block
static int32_t *released;  // by counter and block: up to which of a block's barriers who counted knew what it stored
static char *stacks;
static Launch launch;
static jmp_buf scheduler;
static int first_block, current, ready[kMostThreads], ready_count;
static int arrivals, phase;  // threads that have arrived at a barrier of the cluster, and how many of these were passed
static char message[512];

static uint64_t draw(uint64_t below) {
  launch.seed ^= launch.seed << 13, launch.seed ^= launch.seed >> 7, launch.seed ^= launch.seed << 17;
  return launch.seed % below;
}

static void forbid(int site, const char *what, long long detail);

static int of_block(void) { return launch.x * launch.y; }
static int rank(void) { return current / of_block(); }
static int local(void) { return current % of_block(); }
static int own_block(void) { return first_block + rank(); }

// --- fibers ------------------------------------------------------------------------------------------------

static void leave(void) {
  if (_setjmp(threads[current].place) == 0) _longjmp(scheduler, 1);
}

static void fiber(void) {
  for (;;) {
    launch.entry(launch.parameters);
    if (threads[current].read_count) forbid(threads[current].site, "ends before its products", current);
    threads[current].state = kEnded;
    leave();
  }
}

static void start(Thread *thread) {
  thread->started = 1;
  getcontext(&thread->beginning);
  thread->beginning.uc_stack.ss_sp = stacks + (size_t)current * kStack;
  thread->beginning.uc_stack.ss_size = kStack;
  makecontext(&thread->beginning, fiber, 0);
  setcontext(&thread->beginning);
}

// Run threads until none can go on.
static enum Status run_ready(void) {
  const int why = _setjmp(scheduler);
  if (why > 1) return why == 2 ? kAsserted : kForbidden;
  if (ready_count == 0) return kOk;
  const int pick = (int)draw((uint64_t)ready_count);
  current = ready[pick];
  ready[pick] = ready[--ready_count];
  Thread *thread = &threads[current];
  if (!thread->started) start(thread);
  _longjmp(thread->place, 1);
}

static void forbid(int site, const char *what, long long detail) {
  snprintf(message, sizeof message, "thread %d of block %d, line %d: %s (%lld)", local(), own_block(), site, what,
           detail);
  _longjmp(scheduler, 3);
}

// --- what kernels call ---------------------------------------------------------------------------------------

int32_t card_tid_x(void) { return local() % launch.x; }
int32_t card_tid_y(void) { return local() / launch.x; }
int32_t card_ctaid_x(void) { return own_block(); }
int32_t card_nctaid_x(void) { return launch.blocks; }
int32_t card_cluster_ctarank(void) { return rank(); }
int32_t card_clusterid_x(void) { return own_block() / launch.cluster; }
int32_t card_nclusterid_x(void) { return launch.blocks / launch.cluster; }

// The place in shared memory of the own block, or of another one of the cluster, that a place in the first block's or
// the own block's is.
char *card_own(char *place) { return place + rank() * launch.shared_bytes; }
char *card_mapa(char *place, int32_t to) {
  const int64_t offset = place - launch.shared;
  if (to < 0 || to >= launch.cluster) forbid(0, "a block that is not of the cluster", to);
  if (offset / launch.shared_bytes != rank()) forbid(0, "a place that is not in the block's shared memory", offset);
  return place + (to - rank()) * launch.shared_bytes;
}

void card_assert(const char *what, const char *file, int32_t line, const char *where, int64_t bytes) {
  (void)file, (void)line, (void)where, (void)bytes;
  snprintf(message, sizeof message, "%s", what);
  _longjmp(scheduler, 2);
}

static float flushed(float x) { return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x; }
float card_exp2(float x) { return flushed(exp2f(flushed(x))); }

static void shuffle(int first) {
  uint32_t found[kWarp] = {0};
  for (int lane = 0; lane < kWarp; lane++) {
    const uint32_t members = threads[current].members;
    if (!(members >> lane & 1)) continue;
    const Thread *thread = &threads[first + lane];
    const int by = thread->by & 31, clamp = thread->bounds & 31, segments = thread->bounds >> 8 & 31;
    const int most = (lane & segments) | (clamp & ~segments), least = lane & segments;
    int from = 0, is_valid = 0;
    if (thread->kind == kUp) from = lane - by, is_valid = from >= most;
    if (thread->kind == kBfly) from = lane ^ by, is_valid = from <= most;
    if (thread->kind == kIdx) from = least | (by & ~segments), is_valid = from <= most;
    if (!is_valid) from = lane;
    if (!(members >> from & 1)) forbid(thread->site, "a shuffle reads a lane that takes no part", from);
    found[lane] = threads[first + from].value;
  }
  for (int lane = 0; lane < kWarp; lane++) {
    if (threads[current].members >> lane & 1) threads[first + lane].value = found[lane];
  }
}

// --- tensor cores --------------------------------------------------------------------------------------------

static int64_t conflicts;  // reads of rows of a matrix that lie in the same banks

// Matrix number n has its rows where lanes 8 * n to 8 * n + 7 point to.
static void load_matrices(int first) {
  for (int lane = 0; lane < kWarp; lane++) {
    for (int other = lane & -8; other < lane; other++) {
      const char *mine, *theirs;
      memcpy(&mine, threads[first + lane].words, sizeof mine);
      memcpy(&theirs, threads[first + other].words, sizeof theirs);
      conflicts += mine != theirs && (mine - theirs) % 128 == 0;
    }
    for (int matrix = 0; matrix < 4; matrix++) {
      uint16_t pair[2];
      for (int each = 0; each < 2; each++) {
        int row = lane / 4, column = lane % 4 * 2 + each;
        if (threads[first].kind == kTransposed) row = column, column = lane / 4;
        const Thread *pointing = &threads[first + 8 * matrix + row];
        const char *place;
        memcpy(&place, pointing->words, sizeof place);
        memcpy(&pair[each], place + 2 * column, 2);
      }
      memcpy(&threads[first + lane].result.words[matrix], pair, 4);
    }
  }
}

static double number(int kind, uint32_t word, int half) {
  float found;
  const uint32_t bits = half ? word >> 16 : word & 0xFFFF;
  if (kind == kF16) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) value = fraction ? NAN : INFINITY;
    return bits >> 15 ? -value : value;
  }
  const uint32_t wide = kind == kBf16 ? bits << 16 : word & 0xFFFFE000u;  // TF32 has ten bits of the fraction
  memcpy(&found, &wide, 4);
  return found;
}

// sums (16 x 8) += A (16 x depth) @ B (depth x 8), of a warp, by PTX's layout of fragments.
static void multiply(int first) {
  const int kind = threads[first].kind, pairs = kind == kTf32 ? 1 : 2;  // elements of a word
  double left[16][16] = {{0}}, right[16][8] = {{0}};
  for (int lane = 0; lane < kWarp; lane++) {
    const Thread *thread = &threads[first + lane];
    for (int word = 0; word < 4; word++) {
      for (int each = 0; each < pairs; each++) {
        const int row = lane / 4 + word % 2 * 8, k = lane % 4 * pairs + each + word / 2 * 4 * pairs;
        left[row][k] = number(kind, thread->words[word], each);
        if (word < 2) right[lane % 4 * pairs + each + word * 4 * pairs][lane / 4] = number(kind, thread->words[4 + word], each);
      }
    }
  }
  for (int lane = 0; lane < kWarp; lane++) {
    Thread *thread = &threads[first + lane];
    for (int each = 0; each < 4; each++) {
      const int row = lane / 4 + each / 2 * 8, column = lane % 4 * 2 + each % 2;
      double total = thread->sums[each];
      for (int k = 0; k < 8 * pairs; k++) total += left[row][k] * right[k][column];
      thread->result.sums[each] = (float)total;
    }
  }
}

// To the nearest TF32, ties away from zero.
int32_t card_tf32(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if (isnan(x)) return 0x7FFFFFFF;
  if (!isinf(x)) bits = (bits + 0x1000) & 0xFFFFE000u;
  return (int32_t)bits;
}

int32_t card_word(int32_t number) { return (int32_t)threads[current].result.words[number]; }
float card_sum(int32_t number) { return threads[current].result.sums[number]; }

static void multiply_group(int first);

// Wait for the members, who are lanes of the warp, a warpgroup or the whole block; the last one to come sees to the rest.
int32_t card_meet(int32_t kind, int32_t site, uint32_t members, uint32_t value, uint32_t by, uint32_t bounds) {
  Thread *self = &threads[current];
  const int begin = rank() * of_block(), count = begin + of_block(), width = kind >= kGroupBf16 ? kGroup : kWarp;
  const int is_block = kind == kBlockBarrier, all = is_block || width == kGroup;
  const int first = is_block ? begin : begin + (local() & -width), end = is_block ? count : first + width;
  if (width == kGroup && end > count) forbid(site, "a warpgroup that is not there", count);
  if (!all && !(members >> (local() & 31) & 1)) forbid(site, "the thread is none of the members", members);
  if (!all && end > count && members >> (count - first)) forbid(site, "members that are not there", members);
  self->state = kWaits, self->kind = kind, self->site = site, self->members = members;
  self->value = value, self->by = by, self->bounds = bounds;
  for (int each = first; each < end; each++) {
    if (!all && !(members >> (each - first) & 1)) continue;
    const Thread *other = &threads[each];
    if (other->state != kWaits || other->site != site || other->members != members) {
      leave();
      return (int32_t)self->value;
    }
  }
  if (kind <= kIdx) shuffle(first);
  if (kind == kMatrices || kind == kTransposed) load_matrices(first);
  if (kind >= kBf16 && kind <= kTf32) multiply(first);
  if (kind >= kGroupBf16) multiply_group(first);
  for (int each = first; each < end; each++) {
    if (!all && !(members >> (each - first) & 1)) continue;
    threads[each].state = kRuns;
    threads[each].epoch += kind == kWarpBarrier || is_block;
    threads[each].block_epoch += is_block || (count <= kWarp && members == UINT32_MAX >> (kWarp - count));
    ready[ready_count++] = each;
  }
  leave();
  return (int32_t)self->value;
}

// Arrive at the barrier of the cluster, all lanes of a warp together.
void card_arrive(int32_t site) {
  Thread *self = &threads[current];
  card_meet(kArrival, site, 0xFFFFFFFFu, 0, 0, 0);
  if (self->arrived != self->passed) forbid(site, "arrives twice without a wait", self->arrived);
  self->arrived++;
  if (++arrivals < launch.cluster * of_block()) return;
  arrivals = 0, phase++;
  for (int each = 0; each < launch.cluster * of_block(); each++) {
    if (threads[each].state != kWaits || threads[each].kind != kCluster) continue;
    threads[each].state = kRuns;
    ready[ready_count++] = each;
  }
}

// Wait for all threads of the cluster to have arrived.
void card_await(int32_t site) {
  Thread *self = &threads[current];
  card_meet(kArrival, site, 0xFFFFFFFFu, 0, 0, 0);
  if (self->arrived == self->passed) forbid(site, "waits without having arrived", self->arrived);
  if (phase == self->passed) {
    self->state = kWaits, self->kind = kCluster, self->site = site, self->members = 0;
    leave();
  }
  self->passed++;
}

// Whether a reader or writer is of this thread's warp.
static int is_near(int other) {
  const int warp = (first_block * of_block() + current) / kWarp;
  return other >= 0 ? other / kWarp == warp : other == kSeveral - 1 - warp;
}

// Whether there was no barrier of this thread and another one since: of a warp's own ones only its lanes know, of a
// block's its threads; and one of the cluster counts from this thread's wait on, for what was before the other's
// arrival.
static int meets_since(Epoch then, int other, int of) {
  const Thread *thread = &threads[current];
  if (thread->passed > then.arrived) return 0;
  if (is_near(other)) return then.all == thread->epoch;
  return of != own_block() || then.block == thread->block_epoch;
}

// Whether nothing orders this thread after what a thread did then.
static int is_unordered(Epoch then, int other, int group, int of) {
  const Thread *thread = &threads[current];
  const int each = of_block(), block = own_block(), self = first_block * each + current;
  int theirs = group < kSeveral ? kSeveral - 1 - group : group >= 0 ? group * launch.group / each : -1;
  if (other >= 0) theirs = other / each;
  if (group == self / launch.group) return meets_since(then, other, of);
  if (theirs == block) return then.block == thread->block_epoch;
  if (theirs < 0 || launch.counter_count == 0) return 1;
  const Seen *known = &seen[theirs];
  return known->until <= then.block || (known->thread != current && known->since >= thread->block_epoch);
}

static void note(Trace *trace, int site, enum Touch how, int is_shared, long long offset) {
  const int self = first_block * of_block() + current, block = own_block();
  const int group = self / launch.group;
  const Epoch epoch = {threads[current].epoch, threads[current].block_epoch, threads[current].arrived};
  if (trace->pending) forbid(site, "a copy is on its way", offset);
  if (trace->multiplied && how != kLoads) forbid(site, "writes what products read", offset);
  if (how == kUpdates) {
    if (trace->writer != kNobody && trace->writer != kUpdated) forbid(site, "updates what a thread writes", offset);
    if (trace->reader != kNobody) forbid(site, "updates what a thread reads", offset);
    trace->writer = kUpdated;
    return;
  }
  if (trace->writer == kUpdated) forbid(site, "reaches what threads update", offset);
  if (trace->writer == kNobody && how == kLoads && is_shared) forbid(site, "reads what nobody has written", offset);
  const int other_writes = trace->writer != kNobody && trace->writer != self;
  if (other_writes && is_unordered(trace->written, trace->writer, trace->writer / launch.group, trace->writer / of_block())) {
    forbid(site, "a race with a thread that writes", offset);
  }
  const int other_reads = trace->reader != kNobody && trace->reader != self;
  const int meets = other_reads && is_unordered(trace->read, trace->reader, trace->reading_group, trace->reading_block);
  if (how == kStores) {
    if (meets) forbid(site, "a race with a thread that reads", offset);
    trace->writer = self, trace->written = epoch, trace->shown = threads[current].shown;
    return;
  }
  trace->reading_block = !meets || trace->reading_block == block ? block : -2;
  if (trace->reader == kNobody) trace->reading_group = group;
  if (trace->reading_group != group) {
    const int before = trace->reading_group, of_group = before >= 0 ? before * launch.group / of_block() : -1;
    trace->reading_group = of_group == block || before == kSeveral - 1 - block ? kSeveral - 1 - block : kSeveral;
  }
  const int several = is_near(trace->reader) ? kSeveral - 1 - self / kWarp : kSeveral;
  trace->reader = meets ? several : self;
  trace->read = epoch;
}

static const Region *region_of(const char *address, int32_t bytes) {
  for (int number = 0; number < launch.region_count; number++) {
    const Region *region = &launch.regions[number];
    const int64_t offset = address - region->start;
    if (offset >= 0 && offset + bytes <= region->bytes) return region;
  }
  return NULL;
}

static void pend(const char *address, int32_t bytes, int by) {
  const Region *region = region_of(address, bytes);
  for (int each = 0; region != NULL && each < bytes; each++) region->traces[address - region->start + each].pending += by;
}

// Shared memory of another block is there once all blocks have begun, and until one of its threads has ended.
static void check_block(int other, int site) {
  if (other == rank()) return;
  if (threads[current].passed == 0) forbid(site, "reaches a block that may not have begun", other);
  for (int each = other * of_block(); each < (other + 1) * of_block(); each++) {
    if (threads[each].state == kEnded) forbid(site, "reaches a block that may have ended", other);
  }
}

// A load, a store or an update is about to be.
void card_touch(char *address, int32_t bytes, int32_t alignment, int32_t site, int32_t how) {
  if ((uintptr_t)address % (uintptr_t)alignment) forbid(site, "an address that is not aligned", alignment);
  const Region *region = region_of(address, bytes);
  if (region != NULL) {
    const int number = (int)(region - launch.regions), is_shared = number < launch.shared_regions;
    if (is_shared) check_block(number / (launch.shared_regions / launch.cluster), site);
    for (int64_t each = address - region->start, last = each + bytes; each < last; each++) {
      note(&region->traces[each], site, (enum Touch)how, is_shared, each);
    }
    return;
  }
  if (launch.is_open) return;
  const char *stack = stacks + (size_t)current * kStack;
  if (address < stack || address >= stack + kStack) forbid(site, "memory out of reach", (intptr_t)address);
}

void card_touch_if(int32_t is_reached, char *address, int32_t bytes, int32_t alignment, int32_t site, int32_t how) {
  if (is_reached) card_touch(address, bytes, alignment, site, how);
}

// What the blocks that have counted with the same counter knew is known from here on.
void card_fence(void) {
  Thread *self = &threads[current];
  self->fenced = self->block_epoch;
  if (self->counted < 0) return;
  const int32_t *known = &released[(int64_t)self->counted * launch.blocks];
  for (int each = 0; each < launch.blocks; each++) {
    if (each == own_block() || known[each] <= seen[each].until) continue;
    seen[each] = (Seen){known[each], current, self->block_epoch};
  }
  self->counted = -1;
}

// The counter goes up by one, or back to zero where it has reached its limit.
uint32_t card_count(uint32_t *counter, uint32_t limit, int32_t site) {
  Thread *self = &threads[current];
  const int64_t number = counter - launch.counters;
  if (number < 0 || number >= launch.counter_count) forbid(site, "no counter", number);
  int32_t *known = &released[number * launch.blocks];
  if (self->fenced > known[own_block()]) known[own_block()] = self->fenced;
  for (int each = 0; each < launch.blocks; each++) {
    const int is_known = seen[each].thread == current || seen[each].since < self->fenced;
    if (is_known && seen[each].until > known[each]) known[each] = seen[each].until;
  }
  self->counted = (int32_t)number, self->fenced = 0;
  const uint32_t came = *counter;
  *counter = came >= limit ? 0 : came + 1;
  return came;
}

// Two halves get others added; what gets -0.0 is left alone.
void card_add_halves(char *word, uint32_t both, int32_t site) {
  if ((uintptr_t)word % 4) forbid(site, "two halves that are not aligned", 4);
  for (int each = 0; each < 2; each++) {
    const uint16_t bits = (uint16_t)(both >> 16 * each);
    if (bits == 0x8000) continue;
    _Float16 old, given;
    memcpy(&given, &bits, 2);
    card_touch(word + 2 * each, 2, 2, site, kUpdates);
    memcpy(&old, word + 2 * each, 2);
    old = (_Float16)((float)old + (float)given);
    memcpy(word + 2 * each, &old, 2);
  }
}

static void keep(Copy **kept, int32_t *count, int32_t *room, Copy copy) {
  if (*count == *room) {
    *room = *room ? 2 * *room : 64;
    *kept = realloc(*kept, sizeof(Copy) * (size_t)*room);
    if (*kept == NULL) abort();
  }
  (*kept)[(*count)++] = copy;
}

// A copy of so many bytes to shared memory, of which `copied` are read and the others are zeros.
void card_copy(char *to, char *from, int32_t bytes, int32_t copied, int32_t site) {
  Thread *self = &threads[current];
  if ((uintptr_t)from % (uintptr_t)bytes) forbid(site, "a copy from an address that is not aligned", bytes);
  const Region *region = region_of(to, bytes);
  if (region == NULL || region - launch.regions >= launch.shared_regions) forbid(site, "a copy to nowhere", bytes);
  if (copied) card_touch(from, copied, 1, site, 0);
  card_touch(to, bytes, bytes, site, 1);
  pend(to, bytes, 1);
  keep(&self->copies, &self->copy_count, &self->copy_room, (Copy){to, from, bytes, copied, site, self->group});
}

void card_commit(void) { threads[current].group++; }

// The writes of a thread's copies count as made here.
void card_wait(int32_t groups, int32_t site) {
  Thread *self = &threads[current];
  int kept = 0;
  for (int each = 0; each < self->copy_count; each++) {
    const Copy copy = self->copies[each];
    if (copy.group >= self->group - groups) {
      self->copies[kept++] = copy;
      continue;
    }
    pend(copy.to, copy.bytes, -1);
    card_touch(copy.to, copy.bytes, copy.bytes, site, 1);
    if (copy.copied) card_touch((char *)copy.from, copy.copied, 1, copy.site, 0);
    memcpy(copy.to, copy.from, (size_t)copy.copied);
    memset(copy.to + copy.copied, 0, (size_t)(copy.bytes - copy.copied));
  }
  self->copy_count = kept;
}

void card_matrices(char *row, int32_t is_transposed, int32_t site) {
  card_touch(row, 16, 16, site, 0);
  memcpy(threads[current].words, &row, sizeof row);
  card_meet(is_transposed ? kTransposed : kMatrices, site, 0xFFFFFFFFu, 0, 0, 0);
}

void card_multiply(int32_t kind, int32_t site, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                   uint32_t b1, float c0, float c1, float c2, float c3) {
  Thread *self = &threads[current];
  const uint32_t words[] = {a0, a1, a2, a3, b0, b1};
  const float sums[] = {c0, c1, c2, c3};
  memcpy(self->words, words, sizeof words);
  memcpy(self->sums, sums, sizeof sums);
  card_meet(kind, site, 0xFFFFFFFFu, 0, 0, 0);
}

// --- products of warpgroups ----------------------------------------------------------------------------------

// Sums of products that nobody has waited for are such NaNs: of which products, and of which register.
static uint32_t unknown(const Thread *thread, int number) {
  return 0x7FC00000u | (uint32_t)((thread->version & 0x7FFF) << 7 | number);
}

static int is_multiplied(const Thread *thread) { return thread->is_open || thread->waited < thread->products; }

// What is in a register before assembler that changes it.
void card_put(int32_t number, float sum, int32_t site) {
  Thread *self = &threads[current];
  uint32_t bits;
  memcpy(&bits, &sum, 4);
  if (self->version && bits == unknown(self, number)) return;
  if (is_multiplied(self)) forbid(site, "changes sums of products that are not waited for", number);
  self->registers[number] = sum;
  self->is_put = 1;
}

// What is in a register after it.
float card_take(int32_t number) {
  const Thread *self = &threads[current];
  const uint32_t bits = unknown(self, number);
  float found = self->registers[number];
  if (is_multiplied(self)) memcpy(&found, &bits, 4);
  return found;
}

void card_product_fence(void) { threads[current].is_put = 0; }
void card_show(void) { threads[current].shown++; }

// The address of 16 bytes of an operand, as its descriptor says: those of a place from k = 8 * eighth on, or where lines
// lie across k those of places from 8 * eighth on.
static char *chunk_of(uint64_t operand, int is_across, int line, int eighth) {
  const int64_t start = (int64_t)(operand & 0x3FFF) << 4, panel = (int64_t)(operand >> 16 & 0x3FFF) << 4;
  const int64_t lines = (int64_t)(operand >> 32 & 0x3FFF) << 4;
  int64_t at = start + line % 8 * 128 + line / 8 * lines + eighth % 8 * 16;
  if (is_across) at += eighth / 8 * panel;
  at ^= (at >> 7 & 7) << 4;
  return launch.regions[0].start + (at - kSharedAt);
}

// A product reads 16 bytes, on behalf of the warpgroup.
static void read_chunk(char *chunk, int32_t site) {
  Thread *self = &threads[current];
  card_touch(chunk, 16, 16, site, kLoads);
  const Region *region = region_of(chunk, 16);
  if (region != &launch.regions[0]) forbid(site, "an operand that is not in shared memory", 0);
  for (int each = 0; each < 16; each++) {
    Trace *trace = &region->traces[chunk - region->start + each];
    const Thread *writer = &threads[trace->writer - first_block * of_block()];
    if (writer->shown <= trace->shown) forbid(site, "products read what is not shown to them", chunk - region->start);
    trace->multiplied++;
  }
  keep(&self->reads, &self->read_count, &self->read_room, (Copy){chunk, chunk, 16, 16, site, self->products});
}

static void multiply_group(int first) {
  static double left[64][16], right[16][256];
  Thread *self = &threads[current];
  const int kind = self->kind == kGroupBf16 ? kBf16 : kF16;
  for (int each = first; each < first + kGroup; each++) {
    Thread *thread = &threads[each];
    if (memcmp(thread->words, self->words, sizeof self->words)) forbid(self->site, "not the same product for all", each);
    if (thread->is_put) forbid(self->site, "no fence between numbers in registers and a product", each);
  }
  const int n = (int)self->words[4], across[] = {self->words[5] & 1, self->words[5] >> 1 & 1};
  for (int side = 0; side < 2; side++) {
    const uint64_t operand = self->words[2 * side] | (uint64_t)self->words[2 * side + 1] << 32;
    const int places = side ? n : 64;
    if (operand >> 62 != 1 || (operand >> 49 & 7)) forbid(self->site, "a descriptor of another kind", side);
    if ((operand & 0x3F) >= (across[side] ? 1 : 8)) forbid(self->site, "lines that are not in groups of eight", side);
    for (int line = 0; line < (across[side] ? 16 : places); line++) {
      for (int eighth = 0; eighth < (across[side] ? places / 8 : 2); eighth++) {
        uint16_t numbers[8];
        char *chunk = chunk_of(operand, across[side], line, eighth);
        read_chunk(chunk, self->site);
        memcpy(numbers, chunk, 16);
        for (int each = 0; each < 8; each++) {
          const double value = number(kind, numbers[each], 0);
          const int place = across[side] ? 8 * eighth + each : line, k = across[side] ? line : 8 * eighth + each;
          if (side) right[k][place] = value;
          else left[place][k] = value;
        }
      }
    }
  }
  for (int each = 0; each < kGroup; each++) {
    Thread *thread = &threads[first + each];
    for (int at = 0; at < n / 2; at++) {
      const int row = each / 32 * 16 + each % 32 / 4 + at / 2 % 2 * 8, column = at / 4 * 8 + each % 4 * 2 + at % 2;
      double total = thread->registers[at];
      for (int k = 0; k < 16; k++) total += left[row][k] * right[k][column];
      thread->registers[at] = (float)total;
    }
    thread->version = thread->version % 0x7FFF + 1;
    thread->is_open = 1;
  }
}

void card_multiply_group(int32_t kind, int32_t n, uint64_t left, uint64_t right, int32_t across, int32_t site) {
  const uint32_t words[] = {(uint32_t)left, (uint32_t)(left >> 32), (uint32_t)right, (uint32_t)(right >> 32), (uint32_t)n,
                            (uint32_t)across};
  memcpy(threads[current].words, words, sizeof words);
  card_meet(kind, site, 0xFFFFFFFFu, 0, 0, 0);
}

void card_commit_products(void) {
  threads[current].products++;
  threads[current].is_open = 0;
}

// is_read: whether somebody wants the sums now.
void card_wait_products(int32_t groups, int32_t is_read, int32_t site) {
  Thread *self = &threads[current];
  int kept = 0;
  if (self->products - groups > self->waited) self->waited = self->products - groups;
  if (is_read && is_multiplied(self)) forbid(site, "reads sums of products that are not waited for", groups);
  for (int each = 0; each < self->read_count; each++) {
    const Copy copy = self->reads[each];
    if (copy.group >= self->waited) {
      self->reads[kept++] = copy;
      continue;
    }
    const Region *region = region_of(copy.to, 16);
    for (int byte = 0; byte < 16; byte++) region->traces[copy.to - region->start + byte].multiplied--;
    card_touch(copy.to, 16, 16, copy.site, kLoads);
  }
  self->read_count = kept;
}

// --- what tests call -----------------------------------------------------------------------------------------

static void forget(int first, int end) {
  for (int number = first; number < end; number++) {
    Region *region = &launch.regions[number];
    for (int64_t each = 0; each < region->bytes; each++) {
      region->traces[each] = (Trace){kNobody, kNobody, kNobody, kNobody, 0, 0, 0, {0, 0, 0}, {0, 0, 0}};
    }
  }
}

// The blocks of a cluster.
static enum Status run_cluster(void) {
  const int count = launch.cluster * of_block();
  memset(launch.shared, 0xC9, (size_t)(launch.cluster * launch.shared_bytes));
  forget(0, launch.shared_regions);
  for (int each = 0; launch.counter_count && each < launch.blocks; each++) seen[each] = (Seen){0, -1, 0};
  ready_count = count, arrivals = phase = 0;
  for (int each = 0; each < count; each++) {
    threads[each].state = kRuns;
    threads[each].epoch = threads[each].block_epoch = threads[each].arrived = threads[each].passed = 0;
    threads[each].copy_count = threads[each].group = threads[each].read_count = 0;
    threads[each].products = threads[each].waited = threads[each].is_open = threads[each].is_put = 0;
    threads[each].version = threads[each].shown = 0;
    threads[each].fenced = 0, threads[each].counted = -1;
    ready[each] = each;
  }
  const enum Status status = run_ready();
  if (status != kOk) return status;
  for (int each = 0; each < count; each++) {
    if (threads[each].state == kWaits) return kStuck;
  }
  return kOk;
}

int32_t card_launch(const Launch *given) {
  if (stacks == NULL) {
    stacks = mmap(NULL, (size_t)kMostThreads * kStack, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) abort();
  }
  launch = *given;
  launch.seed = launch.seed * 2654435761u + 88172645463325252u;
  message[0] = '\0';
  forget(launch.shared_regions, launch.region_count);
  if (launch.counter_count) {
    free(seen), free(released);
    seen = malloc(sizeof(Seen) * (size_t)launch.blocks);
    released = calloc((size_t)launch.blocks * (size_t)launch.counter_count, sizeof(int32_t));
    if (seen == NULL || released == NULL) abort();
  }
  const int backwards = (int)draw(2);
  for (int number = 0; number < launch.blocks; number += launch.cluster) {
    first_block = backwards ? launch.blocks - launch.cluster - number : number;
    const enum Status status = run_cluster();
    if (status == kOk) continue;
    for (int each = 0; each < kMostThreads; each++) threads[each].started &= threads[each].state == kEnded;
    return status;
  }
  return kOk;
}

// A kernel of all turns up to `end`, by few blocks. Returns whether an assertion failed.
int64_t card_call(const Function *function, void **buffers, const int64_t *sizes, int64_t begin, int64_t end,
                  void (*entry)(void **)) {
  static uint64_t calls;
  void *parameters[256];
  int count = 0;
  for (int each = 0; each < function->buffers; each++) parameters[count++] = &buffers[each];
  for (int each = 0; each < function->sizes; each++) parameters[count++] = (void *)&sizes[each];
  parameters[count++] = &end;
  parameters[count] = (void *)&function->counters;
  if (begin != 0) abort();
  if (end == 0) return kOk;
  Launch here = function->launch;
  const int64_t blocks = (end - 1) / function->per_block + 1;
  here.entry = entry, here.parameters = parameters;
  here.blocks = (int32_t)(blocks < 3 ? blocks : 3) * here.cluster, here.seed = ++calls;
  const int32_t status = card_launch(&here);
  if (status <= kAsserted) return status;
  fprintf(stderr, "simulated card: status %d: %s\n", status, message);
  abort();
}

// Those since the last call.
int64_t card_conflicts(void) {
  const int64_t found = conflicts;
  conflicts = 0;
  return found;
}

const char *card_message(void) { return message; }

// The state of a thread, the kind and the line of its wait, and the members that it waits for.
void card_thread(int32_t number, int32_t *found) {
  const Thread *thread = &threads[number];
  found[0] = thread->state, found[1] = thread->kind, found[2] = thread->site, found[3] = (int32_t)thread->members;
}
