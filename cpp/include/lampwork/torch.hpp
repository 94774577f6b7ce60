// Lampwork artifacts for programs that have libtorch: at::Tensor in and out, and operators of torch where an entry calls them.
//
//     lampwork::TorchModel model("m.lamp", {.trust = true});
//     std::vector<at::Tensor> results = model.run({torch::randn({1, 3, 224, 224})});
//
// Link lampwork::torch; a program does not need lampwork::runtime besides.
#ifndef LAMPWORK_TORCH_HPP
#define LAMPWORK_TORCH_HPP

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace lampwork {

struct TorchOptions {
  bool trust = false;   // the machine code in the file may be run
  int threads = 0;      // that share the work of a call's kernels; 0: as many as there are cores
  std::string target;   // whose code is used; "": the best that this CPU has
  // Paths of public keys, or their PEM: if there are any, one of them has to have signed the file, whatever `trust` says, and
  // its machine code may be run then.
  std::vector<std::string> keys = {};
};

// A loaded artifact. Many threads may run it at once. What goes wrong is a c10::Error, whose message begins with the name of
// a status of lampwork.h.
class __attribute__((visibility("default"))) TorchModel {
 public:
  explicit TorchModel(const std::string& path, const TorchOptions& options = {});
  ~TorchModel();
  TorchModel(TorchModel&&) noexcept;

  // Runs an entry on dense tensors of the CPU, without gradients. A result that is an input which the model wrote to, or a view
  // of one, is that input or view; others share no memory with inputs or weights.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const std::string& entry = "forward",
                              const std::vector<int64_t>& numbers = {});
  std::vector<std::string> entries() const;
  std::vector<std::string> outputs(const std::string& entry = "forward") const;
  std::string target() const;
  std::string target_reason() const;
  std::string manifest() const;
  // The id of the key that signed the file; "": it was loaded without keys.
  std::string signer() const;
  // Operators of torch that an entry calls, separated by spaces.
  std::string aten_calls(const std::string& entry = "forward") const;
  void set_weights(const std::string& path);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace lampwork

#endif
