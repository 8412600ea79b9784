// Data parallelism as the training loop sees it: one object that holds gradients and optimizer, keeps the parameters'
// values and gradients where a sharding strategy wants them, and steps like one rank would.
//
//     data_parallel.begin_step(num_microbatches);
//     … forward and backward passes, begin_pass() before each of the latter; layers tell the keeper …
//     data_parallel.finish_gradients();
//     const StepResult result = data_parallel.step(learning_rate, weight_decay);
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "pharos/comm/mesh.h"
#include "pharos/config/grammar/name_patterns.h"
#include "pharos/optim/optimizer.h"
#include "pharos/optim/parallel/gradient_sync.h"
#include "pharos/optim/parallel/model_ranges.h"
#include "pharos/optim/parallel/parallel_groups.h"
#include "pharos/optim/parallel/sharding.h"
#include "pharos/optim/parallel/value_sync.h"
#include "pharos/tensor/parameter.h"

namespace pharos::optim {

/// index: of the parameter. values: in the parameter's type, writable in place: of the parameter's shape, or a
/// fragment: one-dimensional, the elements of the flattened parameter from first_element on that this rank holds; may
/// be empty.
using ValueVisitor = std::function<void(std::size_t index, const at::Tensor& values, std::int64_t first_element)>;

class DataParallel : public tensor::ParameterKeeper {
 public:
  /// Parameters are materialised, with equal values on all data-parallel ranks and in tied copies; they and the groups
  /// must outlive this. Their index is that in all_parameters(chunks). There may be none: this rank then takes part in
  /// sums over the model. With one data-parallel rank nothing is sharded, whatever the strategy. Sharded strategies
  /// move the data; with optim_grads_params it is on the meta device but between a use and the next one of another
  /// layer.
  ///
  /// Experts (tensor::is_expert) are reduced and sharded over groups.expert_data, others over groups.data. The average
  /// is in both cases that over the ranks of groups.data: together the experts' copies have seen the tokens of all of
  /// them. Parameters that are not trainable keep their data and have neither gradient nor state; they count in no
  /// norm.
  DataParallel(const ModelChunks& chunks, ParallelGroups groups, const comm::Mesh& mesh, std::int64_t rank,
               const DataParallelOptions& options, const OptimizerOptions& optimizer_options);
  ~DataParallel() override;
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Zeroes the gradients. Each parameter then gets num_uses gradients from each of `num_microbatches`.
  void begin_step(int num_microbatches);
  /// Before each pass that completes the gradients of a microbatch through model chunk `chunk`: its backward pass, or
  /// its weight pass where a schedule divides the two. `num_microbatches` times per chunk, in the same order on all
  /// data-parallel ranks. The passes of different chunks may alternate in any order. Gradients may never come; with
  /// optim_grads_params they must be missing on all data-parallel ranks alike.
  void begin_pass(std::size_t chunk = 0);
  /// After the last pass: reduces what has not been, waits, sums over tensor-parallel ranks and over tied weights.
  void finish_gradients();
  /// Multiplies all gradients (between finish_gradients() and step()); the same factor on every rank.
  void scale_gradients(double factor) { factor_ *= factor; }
  /// Updates like Optimizer::step(): the same decision and norm on every rank, bit for bit. Values are gathered.
  StepResult step(double learning_rate, double weight_decay);

  double loss_scale() const { return optimizer_->loss_scale(); }
  /// L2 norm of the trained values of the whole model, in the compute type; the same on every rank, all of which must
  /// call it.
  double params_norm();
  /// Among the gradients that this rank holds, after finish_gradients(); in forward order.
  std::vector<std::string> non_finite_parameters() const;

  /// The state tensors of every parameter (Optimizer::for_each_state): whole and the same on all data-parallel ranks
  /// where holds_whole_states(), else fragments, each element on one of them.
  void for_each_state(const StateVisitor& visit);
  /// The values of every parameter: whole where holds_whole_values(), else fragments. After writing to them call
  /// copy_data_to_main(), or copy_main_to_data() where main parameters were written too.
  void for_each_value(const ValueVisitor& visit);
  bool holds_whole_states() const { return !shards_states(options_.strategy); }
  /// Always, of a parameter that is not trainable.
  bool holds_whole_values(std::size_t index) const {
    return !shards_values(options_.strategy) || !all_parameters_.at(index)->trainable;
  }

  nlohmann::json save_scalars() const;
  /// Optimizer::restore_scalars; the same on every rank.
  void restore_scalars(const nlohmann::json& state, const std::set<std::string>& newly_trained = {});
  /// After values were loaded, on all ranks: takes them over as main parameters.
  void copy_data_to_main();
  /// After main parameters were loaded: rounds them into the values, on all ranks, each of which must call it.
  void copy_main_to_data();
  /// Waits for values under way, and gives back those gathered on demand: after an evaluation, before others read data.
  void settle_values();

  /// What the gradients in the buffers have still to be multiplied with (main_grad is the sum over the ranks).
  double gradient_factor() const { return factor_; }
  /// Of the trainable parameters, numbered without the others.
  const FlatLayout& layout() const { return layout_; }
  /// Memory of trained values on this rank, gathered ones included.
  std::int64_t resident_value_bytes() const;
  const DataParallelOptions& options() const { return options_; }

  void before_use(const tensor::Parameter& parameter) override;
  void before_gradient(const tensor::Parameter& parameter) override;
  void after_gradient(const tensor::Parameter& parameter) override;

 private:
  /// Gradients of values that ranks of one model share.
  struct SharedSum {
    comm::Group* group;
    comm::Purpose purpose;
    std::vector<at::Tensor> gradients;  ///< flat views
  };
  /// What is counted over the model: apart by kind, for their copies lie on different ranks. [is expert]
  using ByKind = std::array<std::vector<double>, 2>;

  void make_syncs(const ModelChunks& chunks);
  void find_counted();
  UpdateTarget make_target(const std::vector<config::LrScale>& lr_scales) const;
  void make_shared_sums();
  void add_shared_sum(comm::Group* group, comm::Purpose purpose, const std::vector<ElementRange>& ranges);
  GradientTotals totals() const;
  /// Adds up both kinds over the ranks that hold parts of the model, and each other.
  std::vector<double> sum_over_model(ByKind values, const char* what) const;
  bool is_alone() const { return groups_.data == nullptr && groups_.expert_data == nullptr; }
  bool is_expert(std::size_t parameter) const { return layout_.buckets[layout_.bucket_of[parameter]].is_expert; }
  std::size_t index_of(const tensor::Parameter& parameter) const { return indices_.at(&parameter); }

  std::vector<tensor::Parameter*> all_parameters_;
  std::vector<tensor::Parameter*> parameters_;  ///< the trainable ones; all below number these
  std::vector<std::size_t> numbers_;            ///< [trainable parameter] index among all
  bool has_experts_ = false;
  ParallelGroups groups_;
  DataParallelOptions options_;
  std::unordered_map<const tensor::Parameter*, std::size_t> indices_;
  FlatLayout layout_;
  std::vector<HeldRange> held_ranges_;
  ModelRanges model_ranges_;
  std::unique_ptr<ValueSync> values_;  ///< null: data stays where it is
  std::unique_ptr<GradientSync> gradients_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<SharedSum> shared_sums_;
  std::array<std::vector<at::Tensor>, 2> counted_gradients_;  ///< [is expert]
  std::array<std::int64_t, 2> num_counted_{};                 ///< [is expert]
  double reducer_factor_ = 1;
  double factor_ = 1;
};

}  // namespace pharos::optim
