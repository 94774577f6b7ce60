// Memory that calls and results own.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace lampwork::runtime {

// Aligned to 64 bytes, to a huge page where it is that large.
class Block {
 public:
  // LW_MEMORY.
  explicit Block(size_t bytes);
  ~Block();
  Block(const Block&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  char* data_;
  size_t bytes_;
};

// Arenas of calls: programs of a model take turns with them.
class Arenas {
 public:
  std::unique_ptr<Block> take(size_t bytes);
  void give(std::unique_ptr<Block> arena);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> idle_;
};

}  // namespace lampwork::runtime
