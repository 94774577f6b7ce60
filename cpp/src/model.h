// A loaded artifact.
#pragma once

#include "alias.h"
#include "execute.h"
#include "machine_code.h"
#include "signature.h"
#include "trust.h"

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

namespace lampwork::runtime {

struct Options {
  bool trusts = false;
  int threads = 0;
  std::string target;
  std::vector<PublicKey> keys;  // one of them has to have signed the file, if there are any; its code is trusted then
  bool calls_kernels = true;  // else they are linked, and the memory that they get is touched: for tests of damaged files
};

// A result of a call. `alias`: the input that it lies in, and then it has no owner.
struct Output {
  Held held;
  std::optional<Alias> alias;
  lw_dtype dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

// The memory of all weights, in one state.
struct Weights {
  std::vector<char*> data;
  std::vector<std::shared_ptr<const void>> owners;
  bool are_own = false;                         // those of the file that the model is of
  std::vector<std::atomic<uint64_t>> versions;  // count for each what calls write to it
};

class Model {
 public:
  // Throws Error. `aten`: what runs operators of torch, if there is such; it outlives the model.
  static std::unique_ptr<Model> load(const std::string& path, const Options& options, AtenLibrary* aten = nullptr);
  static std::unique_ptr<Model> load(std::shared_ptr<const Bytes> bytes, const Options& options, AtenLibrary* aten = nullptr);
  ~Model();

  const Manifest& manifest() const { return manifest_; }
  const std::string& target() const { return target_; }
  const std::string& reason() const { return reason_; }
  // The id of the key that signed the file; "" if it was loaded without keys.
  const std::string& signer() const { return signer_; }
  // Entries are numbered: those that are called by name, `n_called` of the manifest.
  size_t find_entry(const std::string& name) const;
  // The operators of torch that an entry calls with the weights of the file, in order, separated by spaces.
  const std::string& aten_calls(size_t entry) const;

  void set_weights(const std::string& path);
  void set_weights(std::shared_ptr<const Bytes> bytes);
  // Computes the constants of an entry.
  void prepare(size_t entry);

  // `into`: tensors for the results, one for each leaf, or empty: each result then has memory of its own.
  std::vector<Output> run(size_t entry, const std::vector<Given>& inputs, const std::vector<int64_t>& numbers,
                          const std::vector<Given>& into);

 private:
  struct Entry;
  struct Placed;
  struct Constants;
  struct Maker;
  struct Known;
  class Code;
  class Lease;

  Model();
  void choose_target(const Options& options);
  void read_entries(const Options& options);
  std::string section(const std::string& name) const;
  void check_names(const Container& container) const;
  std::shared_ptr<Weights> make_weights(const Container& container, bool is_own) const;
  void check_weights(const Entry& entry, const Layout& layout, Kind kind) const;
  std::unique_ptr<Known> read_known(const Json& json, const EntryManifest& about, size_t n_modules) const;
  bool take_known(Maker& maker, const Weights& weights, std::vector<Held>& held) const;
  std::vector<Held> make_constants(const Program& program, const Maker& maker, const Weights& weights,
                                   const std::vector<Held>& further) const;
  void complete(const EntryManifest& about, Layout& layout) const;
  void note_writes(Entry& entry);
  void watch_writes();
  std::shared_ptr<Placed> placed(Entry& entry, const std::vector<int64_t>& symbols);
  void check_placed(const Entry& entry, const Program& program, const std::vector<int64_t>& symbols) const;
  std::shared_ptr<const Constants> constants(Maker& maker, const std::shared_ptr<Weights>& weights) const;
  size_t serving(size_t entry, const std::vector<Given>& inputs) const;
  std::shared_ptr<Weights> weights() const;
  std::vector<char*> results(const EntryManifest& about, const Program& program, const std::vector<Given>& inputs,
                             const std::vector<Given>& into) const;
  void write_back(const Entry& entry, const Program& program, const std::vector<Given>& inputs, const std::vector<Held>& held,
                  const Weights& weights) const;
  std::shared_ptr<Program> place_program(const Layout& layout, const int64_t* symbols) const;

  Manifest manifest_;
  std::unique_ptr<Container> container_;
  std::string target_;
  std::string reason_;
  std::string signer_;
  const TargetManifest* chosen_ = nullptr;
  std::unique_ptr<Code> code_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<std::shared_ptr<Maker>> makers_;
  std::vector<bool> written_;  // weights that calls write to: each model has its own copy
  bool writes_weights_ = false;
  std::shared_mutex writing_;  // held alone by calls that write to weights
  mutable std::mutex weights_mutex_;
  std::shared_ptr<Weights> weights_;
  Arenas arenas_;
  std::unique_ptr<Pool> pool_;
  AtenLibrary* aten_ = nullptr;
};

}  // namespace lampwork::runtime
