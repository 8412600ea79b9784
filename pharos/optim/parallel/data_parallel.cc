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
    : parameters_(all_parameters(chunks)), groups_(std::move(groups)), options_(options) {
  const at::NoGradGuard no_grad;
  if (groups_.data != nullptr && groups_.data->size() == 1) groups_.data = nullptr;
  if (groups_.data == nullptr) options_.strategy = config::ShardingStrategy::kNoShard;
  const std::int64_t size = groups_.data == nullptr ? 1 : groups_.data->size();
  layout_ = data_parallel_layout(chunks, options_, size);
  held_ranges_ =
      shards_states(options_.strategy) ? shard_ranges(layout_, size, groups_.data->rank()) : whole_range(layout_);
  model_ranges_ = model_ranges(parameters_, mesh, rank);
  make_syncs(chunks);
  optimizer_ = std::make_unique<Optimizer>(make_target(), optimizer_options);
  make_shared_sums();
  counted_gradients_ = views_without(model_ranges_.counted_elsewhere, layout_, held_ranges_, gradients_->held());
  for (const auto& ranges : model_ranges_.counted) {
    for (const ElementRange& range : ranges) {
      num_counted_ +=
          fragment_of(layout_, held_ranges_, range.parameter, range.begin, range.end - range.begin).num_elements;
    }
  }
  const bool gathers = values_ != nullptr && (options_.overlap_param_gather || !holds_whole_values());
  const bool reduces = groups_.data != nullptr && (options_.overlap_grad_reduce || shards_gradients(options_.strategy));
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
  const BucketReducer reducer(groups_.data, options_, common_type(parameters_));
  reducer_factor_ = factor_ = reducer.remaining_factor();
  const bool overlaps = groups_.data != nullptr && options_.overlap_grad_reduce;
  if (shards_gradients(options_.strategy)) {
    gradients_ = std::make_unique<ShardedGradientSync>(parameters_, layout_, held_ranges_, reducer, overlaps,
                                                       chunks_of_buckets(layout_, chunks));
  } else {
    gradients_ = std::make_unique<FullGradientSync>(parameters_, layout_, held_ranges_, reducer, overlaps);
  }
  if (parameters_.empty()) return;
  if (shards_values(options_.strategy)) {
    values_ = std::make_unique<UnitValueSync>(parameters_, layout_, held_ranges_, *groups_.data,
                                              options_.overlap_param_gather);
  } else if (shards_states(options_.strategy)) {
    values_ = std::make_unique<FlatValueSync>(parameters_, layout_, held_ranges_, *groups_.data,
                                              options_.overlap_param_gather);
  }
}

UpdateTarget DataParallel::make_target() const {
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
         .first_element = part.first_element,
         .decays = parameters_[index]->weight_decay,
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
  if (groups_.data == nullptr && shared_sums_.empty()) return;
  const at::NoGradGuard no_grad;
  {
    PHAROS_SPAN(span, lens::Group::kCommunication, "megatron.grad_sync.start");
    gradients_->start_remaining();
  }
  PHAROS_SPAN(span, lens::Group::kCommunication, "megatron.grad_sync.finish");
  gradients_->finish();
  for (const SharedSum& sum : shared_sums_) sum_together(*sum.group, sum.gradients, sum.purpose);
}

std::vector<double> DataParallel::sum_over_model(std::vector<double> values, const char* what) const {
  // Data-parallel ranks first: their tensor groups then add the same numbers in the same order.
  comm::Group* const shards = shards_states(options_.strategy) ? groups_.data : nullptr;
  for (comm::Group* group : {shards, groups_.tensor, groups_.pipeline}) {
    if (group != nullptr) values = group->reduce_values(std::move(values), comm::ReduceOp::kSum, {what});
  }
  return values;
}

GradientTotals DataParallel::totals() const {
  double squares = 0;
  double zeros = 0;
  for (const at::Tensor& gradients : counted_gradients_) squares += sum_of_squares(gradients);
  if (optimizer_->options().count_zeros) {
    zeros = static_cast<double>(num_counted_);
    for (const at::Tensor& gradients : counted_gradients_) zeros -= static_cast<double>(num_nonzero(gradients));
  }
  const auto sums = sum_over_model({squares * factor_ * factor_, zeros}, "gradient norm");
  GradientTotals totals{.sum_of_squares = sums[0], .num_zeros = {}, .factor = factor_};
  if (optimizer_->options().count_zeros) totals.num_zeros = std::llround(sums[1]);
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
  double squares = 0;
  for (const UpdateSlot& slot : optimizer_->target().slots) {
    for (const at::Tensor& values :
         views_without(model_ranges_.counted_elsewhere, slot.parameter, slot.first_element, slot.value)) {
      squares += sum_of_squares(values.to(at::kFloat).contiguous());
    }
  }
  return std::sqrt(sum_over_model({squares}, "parameter norm")[0]);
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
  if (holds_whole_values()) {
    for (std::size_t index = 0; index < parameters_.size(); ++index) visit(index, parameters_[index]->data.detach(), 0);
    return;
  }
  for (const UpdateSlot& slot : optimizer_->target().slots) visit(slot.parameter, slot.value, slot.first_element);
}

nlohmann::json DataParallel::save_scalars() const { return optimizer_->save_scalars(); }

void DataParallel::restore_scalars(const nlohmann::json& state) { optimizer_->restore_scalars(state); }

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
