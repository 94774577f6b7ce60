#include "machine_code.h"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

namespace lampwork {

namespace {

constexpr uint64_t kStubBytes = 16;                // code that jumps to the address in a slot
constexpr uint64_t kMostAlignment = 4096;           // of a section: a page, which the block is aligned to
constexpr uint64_t kSlotBytes = 8;                 // an address
constexpr uint64_t kMostBytes = uint64_t{1} << 30; // of a block: 32-bit distances reach everywhere in it
constexpr uint64_t kNowhere = std::numeric_limits<uint64_t>::max();
#if defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
constexpr const char* kMachineName = "AArch64";
#else
constexpr uint16_t kMachine = EM_X86_64;
constexpr const char* kMachineName = "x86-64";
#endif

[[noreturn]] void fail(const std::string& message) { throw std::runtime_error(message); }

// The parts of a block, in this order; each begins with a page of its own.
enum Part : uint8_t { kConstants, kCode, kVariables, kParts };
constexpr std::array<int, kParts> kProtection = {PROT_READ, PROT_READ | PROT_EXEC, PROT_READ | PROT_WRITE};

Part part_of(const Elf64_Shdr& section) {
  if ((section.sh_flags & SHF_EXECINSTR) != 0) return kCode;
  return (section.sh_flags & SHF_WRITE) != 0 ? kVariables : kConstants;
}

uint64_t round_up_address(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// The file; every read of it is checked, since it may come from a disk.
class Object {
 public:
  explicit Object(std::string_view bytes) : bytes_(bytes) {
    const auto header = read<Elf64_Ehdr>(0);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
        header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_type != ET_REL || header.e_machine != kMachine) {
      fail(std::string("it is no relocatable object code of ") + kMachineName);
    }
    sections = table<Elf64_Shdr>(header.e_shoff, header.e_shnum);
    for (const Elf64_Shdr& section : sections) {
      if (section.sh_type != SHT_SYMTAB) continue;
      symbols = table<Elf64_Sym>(section.sh_offset, section.sh_size / sizeof(Elf64_Sym));
      names_ = content(this->section(section.sh_link));
    }
  }

  const Elf64_Shdr& section(uint64_t number) const {
    if (number >= sections.size()) fail("it names a section that it does not have");
    return sections[number];
  }
  const Elf64_Sym& symbol(uint64_t number) const {
    if (number >= symbols.size()) fail("it names a symbol that it does not have");
    return symbols[number];
  }
  std::string name(const Elf64_Sym& symbol) const {
    if (symbol.st_name >= names_.size()) fail("a symbol has no name");
    const std::string_view rest = names_.substr(symbol.st_name);
    return std::string(rest.substr(0, rest.find('\0')));
  }
  std::string_view content(const Elf64_Shdr& section) const {
    if (section.sh_type == SHT_NOBITS) return {};
    if (section.sh_offset > bytes_.size() || section.sh_size > bytes_.size() - section.sh_offset) fail("it is cut off");
    return bytes_.substr(section.sh_offset, section.sh_size);
  }
  std::vector<Elf64_Rela> relocations(const Elf64_Shdr& section) const {
    return table<Elf64_Rela>(section.sh_offset, section.sh_size / sizeof(Elf64_Rela));
  }

  std::vector<Elf64_Shdr> sections;
  std::vector<Elf64_Sym> symbols;

 private:
  template <class T>
  T read(uint64_t offset) const {
    if (offset > bytes_.size() || sizeof(T) > bytes_.size() - offset) fail("it is cut off");
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }
  template <class T>
  std::vector<T> table(uint64_t offset, uint64_t count) const {
    if (offset > bytes_.size() || count > (bytes_.size() - offset) / sizeof(T)) fail("it is cut off");
    std::vector<T> items(count);
    if (count > 0) std::memcpy(items.data(), bytes_.data() + offset, count * sizeof(T));
    return items;
  }

  std::string_view bytes_;
  std::string_view names_;
};

// Whether a relocation is about the address of a slot that holds the symbol's address.
bool goes_through_slot(uint64_t type) {
#if defined(__aarch64__)
  return type == R_AARCH64_ADR_GOT_PAGE || type == R_AARCH64_LD64_GOT_LO12_NC;
#else
  return type == R_X86_64_GOTPCREL || type == R_X86_64_GOTPCRELX || type == R_X86_64_REX_GOTPCRELX;
#endif
}

// Where everything lies, as distances from the beginning of the block.
struct Layout {
  explicit Layout(const Object& object)
      : section(object.sections.size(), kNowhere),
        slot(object.symbols.size(), kNowhere),
        stub(object.symbols.size(), kNowhere) {
    for (const Elf64_Shdr& one : object.sections) {
      if ((one.sh_flags & SHF_TLS) != 0) fail("it has thread-local variables");
      if ((one.sh_flags & SHF_ALLOC) == 0) continue;
      section[static_cast<size_t>(&one - object.sections.data())] =
          take(part_of(one), one.sh_size, one.sh_addralign == 0 ? 1 : one.sh_addralign);
    }
    for (const Elf64_Shdr& table : object.sections) {
      if (!applies(table)) continue;
      for (const Elf64_Rela& relocation : object.relocations(table)) {
        const uint64_t number = ELF64_R_SYM(relocation.r_info);
        const bool outside = number != 0 && object.symbol(number).st_shndx == SHN_UNDEF;
        if (number >= slot.size() && goes_through_slot(ELF64_R_TYPE(relocation.r_info)))
          fail("it names a symbol that it does not have");
        if ((outside || goes_through_slot(ELF64_R_TYPE(relocation.r_info))) && slot[number] == kNowhere)
          slot[number] = take(kConstants, kSlotBytes, kSlotBytes);
        if (outside && stub[number] == kNowhere) stub[number] = take(kCode, kStubBytes, kSlotBytes);
      }
    }
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    for (size_t part = 0; part < kParts; ++part) begin[part + 1] = begin[part] + round_up_address(size[part], page);
    if (begin[kParts] == 0) fail("it has no code");
    if (begin[kParts] > kMostBytes) fail("it is too large");
    for (const Elf64_Shdr& one : object.sections) {
      uint64_t& place = section[static_cast<size_t>(&one - object.sections.data())];
      if (place != kNowhere) place += begin[part_of(one)];
    }
    for (uint64_t& place : slot) place += place == kNowhere ? 0 : begin[kConstants];
    for (uint64_t& place : stub) place += place == kNowhere ? 0 : begin[kCode];
  }

  // Whether these are relocations of a section that is loaded.
  bool applies(const Elf64_Shdr& table) const {
    if (table.sh_type == SHT_REL) fail(std::string("its relocations are of a kind that ") + kMachineName + " does not have");
    return table.sh_type == SHT_RELA && table.sh_info < section.size() && section[table.sh_info] != kNowhere;
  }

  std::vector<uint64_t> section;
  std::vector<uint64_t> slot;  // of a symbol: its address
  std::vector<uint64_t> stub;  // of a symbol: code that jumps to it
  std::array<uint64_t, kParts> size{};
  std::array<uint64_t, kParts + 1> begin{};

 private:
  uint64_t take(Part part, uint64_t bytes, uint64_t alignment) {
    if ((alignment & (alignment - 1)) != 0 || alignment > kMostAlignment) fail("a section has an alignment that no section has");
    const uint64_t place = round_up_address(size[part], alignment);
    if (bytes > kMostBytes || place > kMostBytes) fail("it is too large");
    size[part] = place + bytes;
    return place;
  }
};

class Loader {
 public:
  Loader(const Object& object, const Layout& layout, char* block, MachineCode::Resolve resolve)
      : object_(object), layout_(layout), block_(block), resolve_(resolve) {}

  void load() {
    for (size_t i = 0; i < object_.sections.size(); ++i) {
      const std::string_view content = object_.content(object_.sections[i]);
      if (layout_.section[i] != kNowhere && !content.empty())
        std::memcpy(block_ + layout_.section[i], content.data(), content.size());
    }
    for (size_t number = 0; number < object_.symbols.size(); ++number) {
      if (layout_.slot[number] != kNowhere) put<uint64_t>(layout_.slot[number], address(number));
      if (layout_.stub[number] == kNowhere) continue;
      write_stub(layout_.stub[number], layout_.slot[number], address(number));
    }
    for (const Elf64_Shdr& table : object_.sections) {
      if (!layout_.applies(table)) continue;
      for (const Elf64_Rela& relocation : object_.relocations(table)) relocate(relocation, table.sh_info);
    }
  }

  // Where a symbol is, in this module or outside.
  uint64_t address(uint64_t number) const {
    const Elf64_Sym& symbol = object_.symbol(number);
    if (symbol.st_shndx == SHN_UNDEF) {
      const std::string name = object_.name(symbol);
      void* found = resolve_(name);
      if (found == nullptr) fail("this process has no '" + name + "'");
      return reinterpret_cast<uint64_t>(found);
    }
    if (symbol.st_shndx == SHN_ABS) return symbol.st_value;
    if (symbol.st_shndx >= SHN_LORESERVE || object_.section(symbol.st_shndx).sh_size < symbol.st_value ||
        layout_.section[symbol.st_shndx] == kNowhere) {
      fail("a symbol of it lies nowhere");
    }
    return reinterpret_cast<uint64_t>(block_) + layout_.section[symbol.st_shndx] + symbol.st_value;
  }

 private:
  template <class T>
  void put(uint64_t place, T value) {
    std::memcpy(block_ + place, &value, sizeof value);
  }

  // A place of `bytes` bytes inside of its section.
  uint64_t place_of(const Elf64_Rela& relocation, uint64_t section, uint64_t bytes) const {
    const Elf64_Shdr& header = object_.sections[section];
    if (relocation.r_offset > header.sh_size || bytes > header.sh_size - relocation.r_offset)
      fail("a relocation lies outside its section");
    return layout_.section[section] + relocation.r_offset;
  }

#if defined(__aarch64__)
  static constexpr uint64_t kPage = 4096;  // of ADRP, whatever those of the system are

  // ldr x16, 8; br x16; the address
  void write_stub(uint64_t stub, uint64_t, uint64_t target) {
    put<uint32_t>(stub, 0x58000050U);
    put<uint32_t>(stub + 4, 0xD61F0200U);
    put<uint64_t>(stub + 8, target);
  }

  uint32_t word(uint64_t place) const {
    uint32_t value;
    std::memcpy(&value, block_ + place, sizeof value);
    return value;
  }

  // Puts the lowest 12 bits of an address, in units of 2^scale bytes, into the field of ADD, LDR and STR.
  void put_low_bits(uint64_t place, uint64_t target, unsigned scale) {
    const uint64_t low = target % kPage;
    if (low % (uint64_t{1} << scale) != 0) fail("it reaches what is not aligned");
    put<uint32_t>(place, (word(place) & ~(0xFFFU << 10)) | static_cast<uint32_t>(low >> scale) << 10);
  }

  void put_page(uint64_t place, uint64_t target, uint64_t here) {
    const int64_t pages = static_cast<int64_t>(target / kPage) - static_cast<int64_t>(here / kPage);
    if (pages < -(int64_t{1} << 20) || pages >= int64_t{1} << 20) fail("it reaches too far");
    const auto bits = static_cast<uint32_t>(pages) & 0x1FFFFFU;
    put<uint32_t>(place, (word(place) & 0x9F00001FU) | (bits & 3U) << 29 | (bits >> 2) << 5);
  }

  // A distance in words, in `bits` bits from bit `first` on.
  void put_branch(uint64_t place, uint64_t target, uint64_t here, unsigned bits, unsigned first) {
    const auto distance = static_cast<int64_t>(target - here);
    const int64_t most = int64_t{1} << (bits + 1);
    if (distance % 4 != 0 || distance < -most || distance >= most) fail("it reaches too far");
    const uint32_t mask = ((1U << bits) - 1U) << first;
    put<uint32_t>(place, (word(place) & ~mask) | (static_cast<uint32_t>(distance >> 2) << first & mask));
  }

  void relocate(const Elf64_Rela& relocation, uint64_t section) {
    const uint64_t type = ELF64_R_TYPE(relocation.r_info);
    const uint64_t number = ELF64_R_SYM(relocation.r_info);
    if (type == R_AARCH64_NONE || type == 256) return;
    const bool wide = type == R_AARCH64_ABS64 || type == R_AARCH64_PREL64;
    const uint64_t place = place_of(relocation, section, wide ? sizeof(uint64_t) : sizeof(uint32_t));
    const auto base = reinterpret_cast<uint64_t>(block_);
    const uint64_t here = base + place;
    const auto addend = static_cast<uint64_t>(relocation.r_addend);
    object_.symbol(number);
    const bool outside = layout_.stub[number] != kNowhere;
    const uint64_t slot = base + layout_.slot[number];
    switch (type) {
      case R_AARCH64_ABS64:
        put<uint64_t>(place, address(number) + addend);
        return;
      case R_AARCH64_PREL64:
        put<uint64_t>(place, address(number) + addend - here);
        return;
      case R_AARCH64_CALL26:
      case R_AARCH64_JUMP26:
        put_branch(place, (outside ? base + layout_.stub[number] : address(number)) + addend, here, 26, 0);
        return;
      case R_AARCH64_ADR_GOT_PAGE:
        put_page(place, slot + addend, here);
        return;
      case R_AARCH64_LD64_GOT_LO12_NC:
        put_low_bits(place, slot + addend, 3);
        return;
      default:
        break;
    }
    if (outside) fail("it reads '" + object_.name(object_.symbol(number)) + "' as if it were its own");
    const uint64_t target = address(number) + addend;
    switch (type) {
      case R_AARCH64_PREL32: {
        const auto distance = static_cast<int64_t>(target - here);
        if (distance != static_cast<int32_t>(distance)) fail("it reaches too far");
        put<int32_t>(place, static_cast<int32_t>(distance));
        return;
      }
      case R_AARCH64_CONDBR19:
        put_branch(place, target, here, 19, 5);
        return;
      case R_AARCH64_TSTBR14:
        put_branch(place, target, here, 14, 5);
        return;
      case R_AARCH64_ADR_PREL_PG_HI21:
        put_page(place, target, here);
        return;
      case R_AARCH64_ADD_ABS_LO12_NC:
      case R_AARCH64_LDST8_ABS_LO12_NC:
        put_low_bits(place, target, 0);
        return;
      case R_AARCH64_LDST16_ABS_LO12_NC:
        put_low_bits(place, target, 1);
        return;
      case R_AARCH64_LDST32_ABS_LO12_NC:
        put_low_bits(place, target, 2);
        return;
      case R_AARCH64_LDST64_ABS_LO12_NC:
        put_low_bits(place, target, 3);
        return;
      case R_AARCH64_LDST128_ABS_LO12_NC:
        put_low_bits(place, target, 4);
        return;
      default:
        fail("it has relocations of type " + std::to_string(type));
    }
  }
#else
  // jmp *distance(%rip)
  void write_stub(uint64_t stub, uint64_t slot, uint64_t) {
    const std::array<unsigned char, kStubBytes> jump = {0xFF, 0x25, 0,    0,    0,    0,    0xCC, 0xCC,
                                                        0xCC, 0xCC, 0xCC, 0xCC, 0xCC, 0xCC, 0xCC, 0xCC};
    std::memcpy(block_ + stub, jump.data(), jump.size());
    put<uint32_t>(stub + 2, static_cast<uint32_t>(slot - (stub + 6)));
  }

  void relocate(const Elf64_Rela& relocation, uint64_t section) {
    const uint64_t type = ELF64_R_TYPE(relocation.r_info);
    const uint64_t number = ELF64_R_SYM(relocation.r_info);
    if (type == R_X86_64_NONE) return;
    const bool wide = type == R_X86_64_64 || type == R_X86_64_PC64;
    const uint64_t place = place_of(relocation, section, wide ? sizeof(uint64_t) : sizeof(uint32_t));
    const auto here = reinterpret_cast<uint64_t>(block_) + place;
    const auto addend = static_cast<uint64_t>(relocation.r_addend);
    object_.symbol(number);
    const bool outside = layout_.stub[number] != kNowhere;
    uint64_t target = 0;
    switch (type) {
      case R_X86_64_64:
        put<uint64_t>(place, address(number) + addend);
        return;
      case R_X86_64_PC64:
        put<uint64_t>(place, address(number) + addend - here);
        return;
      case R_X86_64_PLT32:
        target = outside ? reinterpret_cast<uint64_t>(block_) + layout_.stub[number] : address(number);
        break;
      case R_X86_64_PC32:
        if (outside) fail("it reads '" + object_.name(object_.symbol(number)) + "' as if it were its own");
        target = address(number);
        break;
      case R_X86_64_GOTPCREL:
      case R_X86_64_GOTPCRELX:
      case R_X86_64_REX_GOTPCRELX:
        target = reinterpret_cast<uint64_t>(block_) + layout_.slot[number];
        break;
      default:
        fail("it has relocations of type " + std::to_string(type));
    }
    const auto distance = static_cast<int64_t>(target + addend - here);
    if (distance != static_cast<int32_t>(distance)) fail("it reaches too far");
    put<int32_t>(place, static_cast<int32_t>(distance));
  }
#endif

  const Object& object_;
  const Layout& layout_;
  char* block_;
  MachineCode::Resolve resolve_;
};

}  // namespace

MachineCode::MachineCode(std::string_view bytes, Resolve resolve) {
  const Object object(bytes);
  const Layout layout(object);
  bytes_ = layout.begin[kParts];
  void* block = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) fail("there is no memory for " + std::to_string(bytes_) + " bytes of code");
  block_ = static_cast<char*>(block);
  try {
    Loader loader(object, layout, block_, resolve);
    loader.load();
    __builtin___clear_cache(block_ + layout.begin[kCode], block_ + layout.begin[kCode + 1]);
    for (size_t part = 0; part < kParts; ++part) {
      const uint64_t size = layout.begin[part + 1] - layout.begin[part];
      if (size > 0 && mprotect(block_ + layout.begin[part], size, kProtection[part]) != 0)
        fail("the memory of code cannot be made executable");
    }
    for (size_t number = 0; number < object.symbols.size(); ++number) {
      const Elf64_Sym& symbol = object.symbols[number];
      if (ELF64_ST_BIND(symbol.st_info) == STB_GLOBAL && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC)
        functions_.emplace(object.name(symbol), loader.address(number));
    }
  } catch (...) {
    munmap(block_, bytes_);
    throw;
  }
}

MachineCode::~MachineCode() { munmap(block_, bytes_); }

}  // namespace lampwork
