#include "pharos/optim/parallel/data_parallel.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "pharos/base/error.h"
#include "pharos/lens/span.h"
#include "pharos/optim/clip.h"
#include "pharos/optim/names/name_rules.h"

namespace pharos::optim {
namespace {

/// That of all parameters, fp32 where they differ.
at::ScalarType common_type(const std::vector<tensor::Parameter*>& parameters) {
  if (parameters.empty()) return at::kFloat;
  const at::ScalarType first = parameters.front()->data.scalar_type();
  const bool is_common = std::all_of(parameters.begin(), parameters.end(), [&](const tensor::Parameter* parameter) {
    return parameter->data.scalar_type() == first;
  });
  return is_common ? first : at::kFloat;
}

/// Sum over `group` of what lies in `views`, in one call.
void sum_together(comm::Group& group, const std::vector<at::Tensor>& views, const comm::Purpose& purpose) {
#ifdef PHAROS_BROKEN_TENSOR_SUMS  // a program of the tests leaves the sums out, and parity must notice
  return;
#endif
  if (views.size() == 1) {
    group.all_reduce(views.front(), comm::ReduceOp::kSum, purpose).wait();
    return;
  }
  const at::Tensor together = at::cat(views);
  group.all_reduce(together, comm::ReduceOp::kSum, purpose).wait();
  std::int64_t offset = 0;
  for (const at::Tensor& view : views) {
    view.copy_(together.narrow(0, offset, view.numel()));
    offset += view.numel();
  }
}

/// What a rank of `group` holds of a bucket.
Shard shard_of(const comm::Group* group) {
  return group == nullptr ? Shard{} : Shard{.count = group->size(), .index = group->rank()};
}

/// [bucket]
std::vector<std::size_t> chunks_of_buckets(const FlatLayout& layout, const ModelChunks& chunks) {
  std::vector<std::size_t> result(layout.buckets.size());
  std::size_t parameter = 0;
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    for (std::size_t i = 0; i < chunks[chunk].size(); ++i) result[layout.bucket_of[parameter++]] = chunk;
  }
  return result;
}

}  // namespace

DataParallel::DataParallel(const ModelChunks& chunks, ParallelGroups groups, const comm::Mesh& mesh, std::int64_t rank,
                           const DataParallelOptions& options, const OptimizerOptions& optimizer_options)
    : all_parameters_(all_parameters(chunks)), groups_(std::move(groups)), options_(options) {
  const at::NoGradGuard no_grad;
  for (std::size_t index = 0; index < all_parameters_.size(); ++index) {
    tensor::Parameter& parameter = *all_parameters_[index];
    if (!parameter.trainable) {
      parameter.main_grad.reset();
      continue;
    }
    parameters_.push_back(&parameter);
    numbers_.push_back(index);
    has_experts_ = has_experts_ || tensor::is_expert(parameter);
  }
  for (comm::Group** group : {&groups_.data, &groups_.expert_data}) {
    if (*group != nullptr && (*group)->size() == 1) *group = nullptr;
  }
  if (!has_experts_) groups_.expert_data = nullptr;
  if (is_alone()) options_.strategy = config::ShardingStrategy::kNoShard;
  const Shard shard = shard_of(groups_.data), expert_shard = shard_of(groups_.expert_data);
  const ModelChunks trained = trainable_parameters(chunks);
  layout_ = data_parallel_layout(trained, options_, shard.count, expert_shard.count);
  held_ranges_ = shards_states(options_.strategy) ? shard_ranges(layout_, shard, expert_shard) : whole_range(layout_);
  model_ranges_ = model_ranges(parameters_, mesh, rank);
  make_syncs(trained);
  optimizer_ = std::make_unique<Optimizer>(make_target(optimizer_options.lr_scales), optimizer_options);
  make_shared_sums();
  find_counted();
  const bool gathers = values_ != nullptr && (options_.overlap_param_gather || shards_values(options_.strategy));
  const bool reduces = !is_alone() && (options_.overlap_grad_reduce || shards_gradients(options_.strategy));
  if (!gathers && !reduces) return;  // layers can keep references to values that never move
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    indices_[parameters_[index]] = index;
    parameters_[index]->keeper = this;
  }
}

DataParallel::~DataParallel() {
  for (tensor::Parameter* parameter : parameters_) {
    if (parameter->keeper == this) parameter->keeper = nullptr;
  }
}

void DataParallel::make_syncs(const ModelChunks& chunks) {
  const BucketReducer reducer(groups_.data, options_, common_type(parameters_), groups_.expert_data);
  reducer_factor_ = factor_ = reducer.remaining_factor();
  const bool overlaps = !is_alone() && options_.overlap_grad_reduce;
  if (shards_gradients(options_.strategy)) {
    gradients_ = std::make_unique<ShardedGradientSync>(parameters_, layout_, held_ranges_, reducer, overlaps,
                                                       chunks_of_buckets(layout_, chunks));
  } else {
    gradients_ = std::make_unique<FullGradientSync>(parameters_, layout_, held_ranges_, reducer, overlaps);
  }
  if (parameters_.empty()) return;
  const ValueGroups holders{.data = groups_.data, .expert = groups_.expert_data};
  if (shards_values(options_.strategy)) {
    values_ =
        std::make_unique<UnitValueSync>(parameters_, layout_, held_ranges_, holders, options_.overlap_param_gather);
  } else if (shards_states(options_.strategy)) {
    values_ =
        std::make_unique<FlatValueSync>(parameters_, layout_, held_ranges_, holders, options_.overlap_param_gather);
  }
}

void DataParallel::find_counted() {
  for (const bool experts : {false, true}) {
    std::vector<ElementRange> others = model_ranges_.counted_elsewhere;
    std::erase_if(others, [&](const ElementRange& range) { return is_expert(range.parameter) != experts; });
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      if (is_expert(index) != experts) others.push_back({index, 0, layout_.num_elements_of(index)});
    }
    counted_gradients_[experts] = views_without(others, layout_, held_ranges_, gradients_->held());
  }
  for (const auto& ranges : model_ranges_.counted) {
    for (const ElementRange& range : ranges) {
      num_counted_[is_expert(range.parameter)] +=
          fragment_of(layout_, held_ranges_, range.parameter, range.begin, range.end - range.begin).num_elements;
    }
  }
}

UpdateTarget DataParallel::make_target(const std::vector<config::LrScale>& lr_scales) const {
  const auto& gradients = gradients_->held();
  const at::Device device = gradients.empty() ? at::Device(at::kCPU) : gradients.front().device();
  UpdateTarget target{{}, num_elements(held_ranges_), device};
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    const std::int64_t count = layout_.num_elements_of(index);
    const Fragment part = fragment_of(layout_, held_ranges_, index, 0, count);
    const auto shape = holds_whole_states() ? layout_.shapes[index] : std::vector{part.num_elements};
    const auto held_view = [&](const std::vector<at::Tensor>& held) {
      return held[part.range].narrow(0, part.offset_in_range, part.num_elements).view(shape);
    };
    target.slots.push_back(
        {.parameter = index,
         .name = parameters_[index]->name,
         .piece = first_piece(*parameters_[index]),
         .first_element = part.first_element,
         .decays = parameters_[index]->weight_decay,
         .learning_rate_scale = learning_rate_scale(*parameters_[index], lr_scales),
         .value = values_ == nullptr ? parameters_[index]->data.detach() : held_view(values_->held()),
         .gradient = held_view(gradients_->held()),
         .offset = held_ranges_[part.range].offset + part.offset_in_range});
  }
  return target;
}

void DataParallel::make_shared_sums() {
  for (const auto& [copies, ranges] : model_ranges_.summed) {
    const auto group = groups_.sharing_tensor.find(copies);
    PHAROS_CHECK(group != groups_.sharing_tensor.end() && group->second != nullptr,
                 "no group of the " + std::to_string(copies) + " tensor-parallel ranks that share a value");
    add_shared_sum(group->second, {"gradients shared between tensor-parallel ranks"}, ranges);
  }
  std::vector<ElementRange> tied;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    if (parameters_[index]->tie == tensor::Parameter::Tie::kNone) continue;
    PHAROS_CHECK(groups_.tied != nullptr,
                 parameters_[index]->name + " is tied, but the group of its holders is missing");
    tied.push_back({index, 0, layout_.num_elements_of(index)});
  }
  add_shared_sum(groups_.tied, {"gradients of tied weights"}, tied);
}

void DataParallel::add_shared_sum(comm::Group* group, comm::Purpose purpose, const std::vector<ElementRange>& ranges) {
  SharedSum sum{group, purpose, {}};
  for (const ElementRange& range : ranges) {
    const at::Tensor view = view_of(range, layout_, held_ranges_, gradients_->held());
    if (view.defined()) sum.gradients.push_back(view);
  }
  if (!sum.gradients.empty()) shared_sums_.push_back(std::move(sum));
}

void DataParallel::begin_step(int num_microbatches) {
  const at::NoGradGuard no_grad;
  factor_ = reducer_factor_;
  gradients_->begin_step(num_microbatches);
}

void DataParallel::begin_pass(std::size_t chunk) {
  const at::NoGradGuard no_grad;
  gradients_->begin_pass(chunk);
}

void DataParallel::finish_gradients() {
  if (is_alone() && shared_sums_.empty()) return;
  const at::NoGradGuard no_grad;
  {
    PHAROS_SPAN(span, lens::Group::kCommunication, "megatron.grad_sync.start");
    gradients_->start_remaining();
  }
  PHAROS_SPAN(span, lens::Group::kCommunication, "megatron.grad_sync.finish");
  gradients_->finish();
  for (const SharedSum& sum : shared_sums_) sum_together(*sum.group, sum.gradients, sum.purpose);
}

std::vector<double> DataParallel::sum_over_model(ByKind values, const char* what) const {
  const auto reduce = [&](std::vector<double>& numbers, comm::Group* group) {
    if (group != nullptr) numbers = group->reduce_values(std::move(numbers), comm::ReduceOp::kSum, {what});
  };
  // The ranks of a sharded state first: those of a model then add the same numbers in the same order.
  auto& [sums, experts] = values;
  const bool is_sharded = shards_states(options_.strategy);
  reduce(sums, is_sharded ? groups_.data : nullptr);
  reduce(sums, groups_.tensor);
  if (has_experts_) {
    reduce(experts, is_sharded ? groups_.expert_data : nullptr);
    reduce(experts, groups_.expert_model);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += experts[i];
  }
  reduce(sums, groups_.pipeline);
  return sums;
}

GradientTotals DataParallel::totals() const {
  const bool counts_zeros = optimizer_->options().count_zeros;
  ByKind values;
  for (const bool experts : {false, true}) {
    double squares = 0;
    std::int64_t zeros = num_counted_[experts];
    for (const at::Tensor& gradients : counted_gradients_[experts]) {
      squares += sum_of_squares(gradients);
      if (counts_zeros) zeros -= num_nonzero(gradients);
    }
    values[experts] = {squares * factor_ * factor_, static_cast<double>(zeros)};
  }
  const auto sums = sum_over_model(std::move(values), "gradient norm");
  GradientTotals totals{.sum_of_squares = sums[0], .num_zeros = {}, .factor = factor_};
  if (counts_zeros) totals.num_zeros = std::llround(sums[1]);
  return totals;
}

StepResult DataParallel::step(double learning_rate, double weight_decay) {
  const at::NoGradGuard no_grad;
  const StepResult result = optimizer_->step(learning_rate, weight_decay, totals());
  if (values_ != nullptr && result.update_successful) values_->values_changed();
  return result;
}

double DataParallel::params_norm() {
  const at::NoGradGuard no_grad;
  ByKind squares{std::vector<double>{0}, {0}};
  for (const UpdateSlot& slot : optimizer_->target().slots) {
    for (const at::Tensor& values :
         views_without(model_ranges_.counted_elsewhere, slot.parameter, slot.first_element, slot.value)) {
      squares[is_expert(slot.parameter)][0] += sum_of_squares(values.to(at::kFloat).contiguous());
    }
  }
  return std::sqrt(sum_over_model(std::move(squares), "parameter norm")[0]);
}

std::vector<std::string> DataParallel::non_finite_parameters() const {
  std::vector<std::string> names;
  for (const UpdateSlot& slot : optimizer_->target().slots) {
    if (!at::isfinite(slot.gradient).all().item<bool>()) names.push_back(slot.name);
  }
  return names;
}

void DataParallel::for_each_value(const ValueVisitor& visit) {
  settle_values();
  for (std::size_t index = 0; index < all_parameters_.size(); ++index) {
    if (holds_whole_values(index)) visit(index, all_parameters_[index]->data.detach(), 0);
  }
  if (!shards_values(options_.strategy)) return;
  for (const UpdateSlot& slot : optimizer_->target().slots)
    visit(numbers_[slot.parameter], slot.value, slot.first_element);
}

void DataParallel::for_each_state(const StateVisitor& visit) {
  optimizer_->for_each_state(
      [&](std::size_t parameter, std::string_view name, const at::Tensor& tensor, std::int64_t first_element) {
        visit(numbers_[parameter], name, tensor, first_element);
      });
}

nlohmann::json DataParallel::save_scalars() const { return optimizer_->save_scalars(); }

void DataParallel::restore_scalars(const nlohmann::json& state, const std::set<std::string>& newly_trained) {
  optimizer_->restore_scalars(state, newly_trained);
}

void DataParallel::copy_data_to_main() {
  settle_values();
  optimizer_->copy_data_to_main();
}

void DataParallel::copy_main_to_data() {
  const at::NoGradGuard no_grad;
  settle_values();
  optimizer_->copy_main_to_data();
  if (values_ != nullptr) values_->values_changed();
}

void DataParallel::settle_values() {
  if (values_ != nullptr) values_->settle();
}

std::int64_t DataParallel::resident_value_bytes() const {
  if (values_ != nullptr) return values_->resident_bytes();
  std::int64_t bytes = 0;
  for (const auto* parameter : parameters_) bytes += static_cast<std::int64_t>(parameter->data.nbytes());
  return bytes;
}

void DataParallel::before_use(const tensor::Parameter& parameter) {
  if (values_ != nullptr) values_->before_use(index_of(parameter));
}

void DataParallel::before_gradient(const tensor::Parameter& parameter) {
  const at::NoGradGuard no_grad;
  gradients_->before_gradient(index_of(parameter));
}

void DataParallel::after_gradient(const tensor::Parameter& parameter) {
  const at::NoGradGuard no_grad;
  gradients_->after_gradient(index_of(parameter));
}

}  // namespace pharos::optim
