// Once a step: what the routers did, summed over all ranks, and the biases that balance them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/comm/group.h"
#include "pharos/config/run_config.h"
#include "pharos/model/transformer.h"
#include "pharos/train/experts/routing.h"

namespace pharos::train {

class RouterWatch {
 public:
  /// chunks: of this pipeline rank; they and the groups outlive this. Groups: ranks between which the tokens of a
  /// global batch are divided (null: one rank), and the stages. data_size: ranks with different samples. device: of the
  /// loads.
  RouterWatch(const config::RunConfig& config, const std::vector<model::Transformer*>& chunks, comm::Group* balance,
              comm::Group& pipeline, std::int64_t data_size, at::Device device);

  /// After the passes of a step and before its optimizer step, on every rank: moves the expert biases that are not
  /// frozen by the tokens of the global batch, and forgets the loads. One collective for all layers of a stage, and one
  /// between the stages. Nothing for a model without experts.
  Routing finish_step();

 private:
  struct Loss {
    std::string type;  ///< of nn::RouterLoad
    std::string name;
    double coefficient;
  };
  /// Columns of a layer: tokens per expert, dropped choices, microbatches on all ranks, losses.
  std::int64_t num_columns() const { return num_experts_ + 2 + static_cast<std::int64_t>(losses_.size()); }
  /// [own layers, columns] float64, over all ranks of the stage.
  at::Tensor sum_stage();
  void move_biases(const at::Tensor& sums);
  /// The same for all layers of the model, on the host.
  std::vector<double> sum_model(const at::Tensor& sums);
  RoutedLayer describe(std::int64_t number, const double* columns) const;

  std::vector<model::TransformerLayer*> layers_;
  std::vector<tensor::Parameter*> biases_;  ///< [layer] null: none that moves
  comm::Group* balance_;
  comm::Group& pipeline_;
  at::Device device_;
  std::int64_t num_layers_ = 0;  ///< of the model, those of multi-token prediction included; 0 without experts
  std::int64_t num_experts_ = 0;
  double ranks_per_sample_ = 1;  ///< between which the tokens of a microbatch are divided
  double bias_update_rate_ = 0;
  std::vector<Loss> losses_;
};

}  // namespace pharos::train
