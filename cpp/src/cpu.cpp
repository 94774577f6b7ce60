#include "cpu.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace lampwork::runtime {

namespace {

#if defined(__x86_64__)

enum Register : uint8_t { kEax, kEbx, kEcx, kEdx };
// State that the system has to save: bits of XCR0.
constexpr uint64_t kNone = 0, kAvx = 0x6, kAvx512 = 0xE6, kAmx = 0x60000;

struct Flag {
  std::string_view name;
  uint32_t leaf, subleaf;
  Register where;
  unsigned bit;
  uint64_t state;
};

constexpr Flag kFlags[] = {
    {"sse", 1, 0, kEdx, 25, kNone},
    {"sse2", 1, 0, kEdx, 26, kNone},
    {"pni", 1, 0, kEcx, 0, kNone},
    {"sse3", 1, 0, kEcx, 0, kNone},
    {"pclmulqdq", 1, 0, kEcx, 1, kNone},
    {"ssse3", 1, 0, kEcx, 9, kNone},
    {"fma", 1, 0, kEcx, 12, kAvx},
    {"cx16", 1, 0, kEcx, 13, kNone},
    {"sse4_1", 1, 0, kEcx, 19, kNone},
    {"sse4_2", 1, 0, kEcx, 20, kNone},
    {"movbe", 1, 0, kEcx, 22, kNone},
    {"popcnt", 1, 0, kEcx, 23, kNone},
    {"aes", 1, 0, kEcx, 25, kNone},
    {"xsave", 1, 0, kEcx, 26, kNone},
    {"avx", 1, 0, kEcx, 28, kAvx},
    {"f16c", 1, 0, kEcx, 29, kAvx},
    {"bmi1", 7, 0, kEbx, 3, kNone},
    {"avx2", 7, 0, kEbx, 5, kAvx},
    {"bmi2", 7, 0, kEbx, 8, kNone},
    {"avx512f", 7, 0, kEbx, 16, kAvx512},
    {"avx512dq", 7, 0, kEbx, 17, kAvx512},
    {"adx", 7, 0, kEbx, 19, kNone},
    {"avx512ifma", 7, 0, kEbx, 21, kAvx512},
    {"avx512cd", 7, 0, kEbx, 28, kAvx512},
    {"avx512bw", 7, 0, kEbx, 30, kAvx512},
    {"avx512vl", 7, 0, kEbx, 31, kAvx512},
    {"avx512vbmi", 7, 0, kEcx, 1, kAvx512},
    {"avx512_vbmi2", 7, 0, kEcx, 6, kAvx512},
    {"gfni", 7, 0, kEcx, 8, kNone},
    {"vaes", 7, 0, kEcx, 9, kAvx},
    {"vpclmulqdq", 7, 0, kEcx, 10, kAvx},
    {"avx512_vnni", 7, 0, kEcx, 11, kAvx512},
    {"avx512_bitalg", 7, 0, kEcx, 12, kAvx512},
    {"avx512_vpopcntdq", 7, 0, kEcx, 14, kAvx512},
    {"amx_bf16", 7, 0, kEdx, 22, kAmx},
    {"avx512_fp16", 7, 0, kEdx, 23, kAvx512},
    {"amx_tile", 7, 0, kEdx, 24, kAmx},
    {"amx_int8", 7, 0, kEdx, 25, kAmx},
    {"avx_vnni", 7, 1, kEax, 4, kAvx},
    {"avx512_bf16", 7, 1, kEax, 5, kAvx512},
    {"amx_fp16", 7, 1, kEax, 21, kAmx},
    {"lahf_lm", 0x80000001, 0, kEcx, 0, kNone},
    {"abm", 0x80000001, 0, kEcx, 5, kNone},
    {"lzcnt", 0x80000001, 0, kEcx, 5, kNone},
};

uint64_t saved_state() {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx >> 27 & 1U) == 0) return 0;
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

bool has(const Flag& flag) {
  uint32_t registers[4] = {};
  if (__get_cpuid_count(flag.leaf, flag.subleaf, &registers[0], &registers[1], &registers[2], &registers[3]) == 0)
    return false;
  return (registers[flag.where] >> flag.bit & 1U) != 0 && (saved_state() & flag.state) == flag.state;
}

constexpr const char* kListed = "flags";

#elif defined(__aarch64__)

// Bits of AT_HWCAP (0) and AT_HWCAP2 (1), as in the kernel's asm/hwcap.h.
struct Flag {
  std::string_view name;
  int word;
  unsigned bit;
};

constexpr Flag kFlags[] = {
    {"fp", 0, 0},       {"asimd", 0, 1},    {"aes", 0, 3},       {"pmull", 0, 4},   {"sha1", 0, 5},
    {"sha2", 0, 6},     {"crc32", 0, 7},    {"atomics", 0, 8},   {"fphp", 0, 9},    {"asimdhp", 0, 10},
    {"asimdrdm", 0, 12}, {"jscvt", 0, 13},  {"fcma", 0, 14},     {"lrcpc", 0, 15},  {"sha3", 0, 17},
    {"asimddp", 0, 20}, {"sha512", 0, 21},  {"sve", 0, 22},      {"asimdfhm", 0, 23}, {"sve2", 1, 1},
    {"i8mm", 1, 13},    {"bf16", 1, 14},
};

bool has(const Flag& flag) { return (getauxval(flag.word == 0 ? AT_HWCAP : AT_HWCAP2) >> flag.bit & 1U) != 0; }

constexpr const char* kListed = "Features";

#else
#error "liblampwork_runtime is for x86-64 and AArch64"
#endif

// Asked once: where a hypervisor answers, each question takes microseconds.
const std::set<std::string_view>& known() {
  static const std::set<std::string_view> found = [] {
    std::set<std::string_view> names;
    for (const Flag& flag : kFlags) {
      if (has(flag)) names.insert(flag.name);
    }
    return names;
  }();
  return found;
}

// In /proc/cpuinfo, for flags that the table above does not have.
bool is_listed(const std::string& flag) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(kListed, 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') == std::string::npos ? 0 : line.find(':') + 1));
    for (std::string word; words >> word;) {
      if (word == flag) return true;
    }
    return false;
  }
  return false;
}

}  // namespace

const char* machine() {
#if defined(__x86_64__)
  return "x86_64";
#else
  return "aarch64";
#endif
}

bool cpu_has(const std::string& flag) {
  for (const Flag& one : kFlags) {
    if (one.name == flag) return known().count(flag) != 0;
  }
  return is_listed(flag);
}

bool permit(const std::string& flag) {
#if defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
  if (flag.rfind("amx", 0) == 0) return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#endif
  return cpu_has(flag);
}

}  // namespace lampwork::runtime
