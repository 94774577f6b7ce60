#include "machine_code.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <torch/csrc/Exceptions.h>

#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

namespace lampwork {

namespace {

constexpr uint64_t kStubBytes = 8;                 // jmp *distance(%rip), padded
constexpr uint64_t kSlotBytes = 8;                 // an address
constexpr uint64_t kMostBytes = uint64_t{1} << 30; // of a block: 32-bit distances reach everywhere in it
constexpr uint64_t kNowhere = std::numeric_limits<uint64_t>::max();

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
        header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_type != ET_REL || header.e_machine != EM_X86_64) {
      fail("it is no relocatable object code of x86-64");
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

bool goes_through_slot(uint64_t type) {
  return type == R_X86_64_GOTPCREL || type == R_X86_64_GOTPCRELX || type == R_X86_64_REX_GOTPCRELX;
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
        if ((outside || goes_through_slot(ELF64_R_TYPE(relocation.r_info))) && slot[number] == kNowhere)
          slot[number] = take(kConstants, kSlotBytes, kSlotBytes);
        if (outside && stub[number] == kNowhere) stub[number] = take(kCode, kStubBytes, kStubBytes);
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
    if (table.sh_type == SHT_REL) fail("its relocations are of a kind that x86-64 does not have");
    return table.sh_type == SHT_RELA && table.sh_info < section.size() && section[table.sh_info] != kNowhere;
  }

  std::vector<uint64_t> section;
  std::vector<uint64_t> slot;  // of a symbol: its address
  std::vector<uint64_t> stub;  // of a symbol: code that jumps to it
  std::array<uint64_t, kParts> size{};
  std::array<uint64_t, kParts + 1> begin{};

 private:
  uint64_t take(Part part, uint64_t bytes, uint64_t alignment) {
    const uint64_t place = round_up_address(size[part], alignment);
    if (bytes > kMostBytes || place > kMostBytes) fail("it is too large");
    size[part] = place + bytes;
    return place;
  }
};

class Loader {
 public:
  Loader(const Object& object, const Layout& layout, char* block) : object_(object), layout_(layout), block_(block) {}

  void load() {
    for (size_t i = 0; i < object_.sections.size(); ++i) {
      const std::string_view content = object_.content(object_.sections[i]);
      if (layout_.section[i] != kNowhere && !content.empty())
        std::memcpy(block_ + layout_.section[i], content.data(), content.size());
    }
    for (size_t number = 0; number < object_.symbols.size(); ++number) {
      if (layout_.slot[number] != kNowhere) put<uint64_t>(layout_.slot[number], address(number));
      if (layout_.stub[number] == kNowhere) continue;
      const uint64_t stub = layout_.stub[number];
      const std::array<unsigned char, kStubBytes> jump = {0xFF, 0x25, 0, 0, 0, 0, 0xCC, 0xCC};
      std::memcpy(block_ + stub, jump.data(), jump.size());
      put<uint32_t>(stub + 2, static_cast<uint32_t>(layout_.slot[number] - (stub + 6)));
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
      void* found = dlsym(RTLD_DEFAULT, name.c_str());
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

  void relocate(const Elf64_Rela& relocation, uint64_t section) {
    const uint64_t type = ELF64_R_TYPE(relocation.r_info);
    const uint64_t number = ELF64_R_SYM(relocation.r_info);
    const bool wide = type == R_X86_64_64 || type == R_X86_64_PC64;
    const uint64_t bytes = wide ? sizeof(uint64_t) : sizeof(uint32_t);
    const uint64_t size = object_.sections[section].sh_size;
    if (relocation.r_offset > size || bytes > size - relocation.r_offset) fail("a relocation lies outside its section");
    const uint64_t place = layout_.section[section] + relocation.r_offset;
    const auto here = reinterpret_cast<uint64_t>(block_) + place;
    const auto addend = static_cast<uint64_t>(relocation.r_addend);
    const bool outside = layout_.stub[number] != kNowhere;
    uint64_t target = 0;
    switch (type) {
      case R_X86_64_NONE:
        return;
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

  const Object& object_;
  const Layout& layout_;
  char* block_;
};

}  // namespace

MachineCode::MachineCode(std::string_view bytes) {
  const Object object(bytes);
  const Layout layout(object);
  bytes_ = layout.begin[kParts];
  void* block = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) fail("there is no memory for " + std::to_string(bytes_) + " bytes of code");
  block_ = static_cast<char*>(block);
  try {
    Loader loader(object, layout, block_);
    loader.load();
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

// --- the Python type ---------------------------------------------------------------------------------------

namespace {

struct MachineCodeObject {
  PyObject_HEAD
  MachineCode* code;
};

MachineCodeObject* as_machine_code(PyObject* self) { return reinterpret_cast<MachineCodeObject*>(self); }

PyObject* machine_code_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"object_code", nullptr};
  PyObject* object_code = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "S", const_cast<char**>(names), &object_code)) return nullptr;
  HANDLE_TH_ERRORS
  std::unique_ptr<MachineCode> code;
  try {
    code = std::make_unique<MachineCode>(
        std::string_view(PyBytes_AS_STRING(object_code), static_cast<size_t>(PyBytes_GET_SIZE(object_code))));
  } catch (const std::runtime_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  as_machine_code(self)->code = code.release();
  return self;
  END_HANDLE_TH_ERRORS
}

void machine_code_dealloc(PyObject* self) {
  delete as_machine_code(self)->code;
  Py_TYPE(self)->tp_free(self);
}

PyObject* machine_code_functions(PyObject* self, void*) {
  PyObject* functions = PyDict_New();
  if (functions == nullptr) return nullptr;
  for (const auto& [name, address] : as_machine_code(self)->code->functions()) {
    PyObject* number = PyLong_FromUnsignedLongLong(address);
    if (number == nullptr || PyDict_SetItemString(functions, name.c_str(), number) != 0) {
      Py_XDECREF(number);
      Py_DECREF(functions);
      return nullptr;
    }
    Py_DECREF(number);
  }
  return functions;
}

PyObject* machine_code_bytes(PyObject* self, void*) { return PyLong_FromSize_t(as_machine_code(self)->code->bytes()); }

PyGetSetDef machine_code_getset[] = {
    {"functions", machine_code_functions, nullptr, "The addresses of the functions, by name.", nullptr},
    {"bytes", machine_code_bytes, nullptr, "How much memory it takes.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

PyTypeObject MachineCodeType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "lampwork._C.MachineCode",
    .tp_basicsize = sizeof(MachineCodeObject),
    .tp_dealloc = machine_code_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "MachineCode(object_code): relocatable object code (ELF, x86-64), loaded. Undefined symbols are looked up "
              "in the process. The memory lives as long as this object. Raises ValueError.",
    .tp_getset = machine_code_getset,
    .tp_new = machine_code_new,
};

}  // namespace lampwork
