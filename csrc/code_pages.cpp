#include "code_pages.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace lampwork {

namespace {

// Of an entry of /proc/self/pagemap (Documentation/admin-guide/mm/pagemap.rst).
constexpr uint64_t kPresent = uint64_t{1} << 63;
constexpr uint64_t kOfFile = uint64_t{1} << 61;

struct Search {
  uintptr_t inside;
  int pagemap;
  int64_t dropped = 0;
};

bool has_relocated_code(const dl_phdr_info& library) {
  for (size_t i = 0; i < library.dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = library.dlpi_phdr[i];
    if (header.p_type != PT_DYNAMIC) continue;
    const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(library.dlpi_addr + header.p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_TEXTREL) return true;
      if (entry->d_tag == DT_FLAGS && (entry->d_un.d_val & DF_TEXTREL) != 0) return true;
    }
  }
  return false;
}

// Drops the clean pages of [begin, end), both at page boundaries.
int64_t drop_clean(int pagemap, uintptr_t begin, uintptr_t end, uintptr_t page) {
  std::array<uint64_t, 512> entries;
  int64_t dropped = 0;
  while (begin < end) {
    const size_t wanted = std::min<size_t>(entries.size(), (end - begin) / page);
    const ssize_t read = ::pread(pagemap, entries.data(), wanted * sizeof(uint64_t),
                                 static_cast<off_t>(begin / page * sizeof(uint64_t)));
    if (read < static_cast<ssize_t>(sizeof(uint64_t))) return dropped;
    const size_t count = static_cast<size_t>(read) / sizeof(uint64_t);
    for (size_t first = 0; first < count;) {
      size_t last = first;
      while (last < count && (entries[last] & (kPresent | kOfFile)) == (kPresent | kOfFile)) ++last;
      if (last > first &&
          ::madvise(reinterpret_cast<void*>(begin + first * page), (last - first) * page, MADV_DONTNEED) == 0) {
        dropped += static_cast<int64_t>((last - first) * page);
      }
      first = last + 1;
    }
    begin += count * page;
  }
  return dropped;
}

bool is_loaded(const ElfW(Phdr)& header) { return header.p_type == PT_LOAD && header.p_memsz > 0; }

int visit(dl_phdr_info* library, size_t, void* given) {
  auto& search = *static_cast<Search*>(given);
  const auto* headers = library->dlpi_phdr;
  const bool found = std::any_of(headers, headers + library->dlpi_phnum, [&](const ElfW(Phdr)& header) {
    return is_loaded(header) && search.inside - (library->dlpi_addr + header.p_vaddr) < header.p_memsz;
  });
  if (!found) return 0;
  if (has_relocated_code(*library)) return 1;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (size_t i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = headers[i];
    // What is made read-only after relocation (RELRO) lies in segments that are writable.
    if (!is_loaded(header) || (header.p_flags & PF_W) != 0) continue;
    const uintptr_t begin = library->dlpi_addr + header.p_vaddr;
    search.dropped += drop_clean(search.pagemap, (begin + page - 1) / page * page,
                                 (begin + header.p_filesz) / page * page, page);
  }
  return 1;
}

}  // namespace

int64_t drop_code_pages(const void* inside) {
  const int pagemap = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pagemap < 0) return 0;
  Search search{reinterpret_cast<uintptr_t>(inside), pagemap};
  ::dl_iterate_phdr(visit, &search);  // under the loader's lock, so the library stays
  ::close(pagemap);
  return search.dropped;
}

}  // namespace lampwork
