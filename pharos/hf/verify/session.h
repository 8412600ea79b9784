// One verification on one rank: the model's part here, and what to compare with.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pharos/checkpoint/safetensors.h"
#include "pharos/comm/mesh.h"
#include "pharos/comm/world.h"
#include "pharos/hf/hf_config.h"
#include "pharos/hf/hf_names.h"
#include "pharos/hf/verify/oracle.h"
#include "pharos/hf/verify/verify.h"
#include "pharos/model/transformer.h"
#include "pharos/optim/parallel/data_parallel.h"
#include "pharos/pipeline/executor.h"

namespace pharos::hf {

/// The values of `oracle` of that name and shape, in float32. UserError naming `path` unless they are there, of a
/// floating-point type, and finite.
at::Tensor expected_values(const checkpoint::SafetensorsSet& oracle, const std::filesystem::path& path,
                           const std::string& name, at::IntArrayRef shape);

/// The L2 norm of a tensor's difference over that of its reference, but at least over 1e-2 of `whole`, the norm of all
/// gradients: where a gradient vanishes (softmax over one key), rounding, about 4e-8 of `whole`, is all there is.
double relative_difference(double difference, double reference, double whole);

class VerifySession {
 public:
  /// Loads the model. UserError as verify().
  VerifySession(const std::filesystem::path& folder, const std::filesystem::path& oracle, comm::World& world,
                const VerifyLayout& layout, const std::optional<Tolerances>& tolerances);
  VerifyResult run();

 private:
  class OnePass;

  bool is_last_stage() const { return model_->stage().output; }
  void add(const std::string& name, double value, double tolerance, const char* unit);
  at::Tensor expected(const std::string& name, at::IntArrayRef shape) const;
  /// This rank's rows of a batch [batch, …].
  at::Tensor own_rows(const at::Tensor& batch) const;
  /// Over all ranks; a NaN counts as infinite.
  double largest(double value);
  nn::ForwardContext context_of(const at::Tensor& tokens) const;

  void compare_forward();
  double logits_difference(const at::Tensor& hidden) const;
  /// While the model is whole on this rank.
  void watch_activations();
  void watch_routers();
  void leave_routers();
  void compare_routing(std::int64_t layer, const nn::Router& router, const at::Tensor& tokens,
                       const nn::Routing& routing);
  void compare_backward();
  NameTable gradient_names(bool& with_prefix) const;
  /// Lists the tensors whose gradients are compared, those of other ranks included; all must be in the oracle.
  void list_tensors(model::Transformer& whole);
  void compare_gradients();
  void add_gradient_checks(const std::vector<double>& sums);
  void compare_trajectory();
  /// Forward and backward pass over a batch; returns its mean loss. The gradients are complete afterwards.
  double backward(const at::Tensor& tokens, const at::Tensor& labels);
  double mean_over_batch(double value);

  HfModel hf_;
  std::filesystem::path oracle_path_;
  comm::World& world_;
  comm::Mesh mesh_;
  std::int64_t rank_;
  Oracle oracle_;
  Tolerances tolerances_;
  std::vector<std::string> tensor_names_;   ///< of the whole model's gradients, ascending
  std::vector<std::int64_t> tensor_sizes_;  ///< their elements
  std::unique_ptr<model::Transformer> model_;
  std::unique_ptr<optim::DataParallel> optimizer_;
  std::unique_ptr<pipeline::Executor> forward_passes_, passes_;
  VerifyResult result_;
};

}  // namespace pharos::hf
