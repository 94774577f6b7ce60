#pragma once

// What a model is made of: its entries, their placed programs, and what computes their constants.

#include "c_library.h"
#include "machine_code.h"
#include "model.h"

#include <stdexcept>
#include <string_view>

namespace lampwork::runtime {

// The machine code of the chosen target.
class Model::Code : public Functions {
 public:
  explicit Code(bool calls_kernels) : calls_kernels_(calls_kernels) {}

  void add(std::string_view object, const std::string& name) {
    try {
      modules_.push_back(std::make_unique<MachineCode>(object, &c_library));
    } catch (const Error&) {
      throw;
    } catch (const std::runtime_error& error) {
      damaged("the machine code in '" + name + "' cannot be loaded: " + error.what());
    }
  }

  KernelFunction find(size_t module, const std::string& name) const override {
    const auto& functions = modules_.at(module)->functions();
    const auto found = functions.find(name);
    if (found == functions.end() || found->second == 0) damaged("its machine code has no function '" + name + "'");
    return calls_kernels_ ? reinterpret_cast<KernelFunction>(found->second) : nullptr;
  }

 private:
  std::vector<std::unique_ptr<MachineCode>> modules_;
  bool calls_kernels_;
};

// A program with the frames that its calls take turns with.
struct Model::Placed {
  std::vector<int64_t> key;
  std::shared_ptr<Program> program;
  std::mutex mutex;
  std::vector<std::unique_ptr<Frame>> idle;
};

struct Model::Constants {
  std::shared_ptr<Weights> weights;
  std::vector<uint64_t> versions;  // of what the maker watches
  std::vector<Held> held;
};

// Constants that the file has, for its own weights. `places`: for each constant its place among `tensors`, numbers of the
// manifest's, or -1: the next output of `rest`, whose inputs are the weights and then these tensors.
struct Model::Known {
  std::vector<size_t> tensors;
  std::vector<int64_t> places;
  std::unique_ptr<Layout> rest;  // nullptr: all are known
};

// Computes the constants of entries: of all that compute the same of the same weights.
struct Model::Maker {
  std::vector<size_t> weights;
  std::vector<size_t> watched;     // those of them that it reads and calls write to
  const Layout* layout = nullptr;  // of an entry
  std::string aten;                // the operators of torch that it calls
  Json json;
  std::mutex mutex;  // of what follows; held while constants are computed
  std::shared_ptr<Program> program;
  bool is_prepared = false;  // for torch, too
  std::shared_ptr<const Constants> constants;
  std::unique_ptr<const Known> known;  // nullptr: all are computed
};

struct Model::Entry {
  const EntryManifest* about = nullptr;
  std::shared_ptr<Maker> maker;  // nullptr: it has no constants
  std::unique_ptr<Layout> layout;
  std::string aten;
  std::vector<size_t> written_weights;
  std::vector<bool> written_inputs;       // by the program or after it
  std::vector<bool> written_by_program;   // of inputs, then weights
  std::mutex mutex;                       // of what follows
  std::list<std::shared_ptr<Placed>> placed;  // the last one used first
};

}  // namespace lampwork::runtime
