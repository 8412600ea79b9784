#include "pharos/optim/parallel/value_sync.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "pharos/base/error.h"

namespace pharos::optim {
namespace {

/// Values are used under autograd, in evaluation and in backward passes; they are made the same way in all of them.
struct PlainTensors {
  c10::InferenceMode no_inference{false};
  at::NoGradGuard no_grad;
};

at::Tensor empty_like_data(const std::vector<tensor::Parameter*>& parameters, std::int64_t num_elements) {
  const at::Tensor& first = parameters.front()->data;
  for (const tensor::Parameter* parameter : parameters) {
    const at::Tensor& data = parameter->data;
    PHAROS_CHECK(!data.is_meta() && data.device() == first.device() && data.scalar_type() == first.scalar_type(),
                 parameter->name + " is not materialised like " + parameters.front()->name);
  }
  return at::zeros({num_elements}, first.options().requires_grad(false));
}

at::Tensor data_view(const at::Tensor& flat, std::int64_t begin, const FlatLayout& layout, std::size_t index,
                     bool requires_grad) {
  return flat.narrow(0, begin, layout.num_elements_of(index)).view(layout.shapes[index]).requires_grad_(requires_grad);
}

/// Gives the memory back although a graph may still hold tensors on it (the node that would accumulate a leaf's
/// gradient does): nobody reads them, layers ask for the values again in their backward pass.
void free_storage(at::Tensor& buffer) {
  c10::StorageImpl* storage = buffer.storage().unsafeGetStorageImpl();
  storage->set_nbytes(std::size_t{0});
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, buffer.device()));
  buffer.reset();
}

}  // namespace

FlatValueSync::FlatValueSync(std::vector<tensor::Parameter*> parameters, const FlatLayout& layout,
                             const std::vector<HeldRange>& held_ranges, ValueGroups groups, bool overlaps)
    : layout_(layout), groups_(groups), overlaps_(overlaps), works_(layout.buckets.size()) {
  const PlainTensors plain;
  flat_ = empty_like_data(parameters, layout.num_elements);
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    at::Tensor& data = parameters[index]->data;
    const at::Tensor view = data_view(flat_, layout.offsets[index], layout, index, data.requires_grad());
    view.detach().copy_(data);
    data = view;
  }
  for (const HeldRange& range : held_ranges) held_.push_back(flat_.narrow(0, range.begin, range.length()));
}

void FlatValueSync::values_changed() {
  settle();
  // The last bucket has the first parameters: the order in which the next forward pass wants them.
  for (std::size_t bucket = layout_.buckets.size(); bucket-- > 0;) {
    const Bucket& range = layout_.buckets[bucket];
    if (groups_.of(range) == nullptr) continue;
    works_[bucket] = groups_.of(range)->all_gather(flat_.narrow(0, range.begin, range.end - range.begin), held_[bucket],
                                                   {"parameter bucket", static_cast<std::int64_t>(bucket)});
  }
  if (!overlaps_) settle();
}

void FlatValueSync::settle() {
  for (comm::Work& work : works_) work.wait();
}

std::int64_t FlatValueSync::resident_bytes() const { return static_cast<std::int64_t>(flat_.nbytes()); }

UnitValueSync::UnitValueSync(std::vector<tensor::Parameter*> parameters, const FlatLayout& layout,
                             const std::vector<HeldRange>& held_ranges, ValueGroups groups, bool prefetches)
    : parameters_(std::move(parameters)),
      layout_(layout),
      groups_(groups),
      prefetches_(prefetches),
      units_(layout.buckets.size()) {
  const PlainTensors plain;
  shard_ = empty_like_data(parameters_, num_elements(held_ranges));
  for (const HeldRange& range : held_ranges) held_.push_back(shard_.narrow(0, range.offset, range.length()));
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    at::Tensor& data = parameters_[index]->data;
    const Fragment part = fragment_of(layout, held_ranges, index, 0, data.numel());
    if (part.num_elements > 0) {
      held_[part.range]
          .narrow(0, part.offset_in_range, part.num_elements)
          .copy_(data.detach().reshape(-1).narrow(0, part.first_element, part.num_elements));
    }
    absent_.push_back(at::empty(data.sizes(), data.options().device(at::kMeta)).requires_grad_(data.requires_grad()));
    data = absent_.back();
  }
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    turns_[layout.buckets[unit].is_expert].units.push_back(unit);
    if (groups_.of(layout.buckets[unit]) == nullptr) bind(unit, held_[unit]);
  }
}

void UnitValueSync::enter(Turn& turn, std::size_t unit) {
  const PlainTensors plain;
  if (turn.previous != kNone) turn.followed_by[{turn.previous, turn.current}] = unit;
  if (turn.ahead != kNone && turn.ahead != unit) release(turn.ahead);
  if (turn.current != kNone) release(turn.current);
  if (!units_[unit].buffer.defined()) start_gather(unit);
  turn.previous = turn.current;
  turn.current = unit;
  turn.ahead = kNone;
  units_[unit].work.wait();
  bind(unit, units_[unit].buffer);
  if (!prefetches_) return;
  turn.ahead = successor(turn);
  if (turn.ahead != kNone) start_gather(turn.ahead);
}

std::size_t UnitValueSync::successor(const Turn& turn) {
  const auto known = turn.followed_by.find({turn.previous, turn.current});
  if (known != turn.followed_by.end()) return known->second;
  // Never been here: on in the same direction. Forward, from the last bucket to the first, to begin with.
  const bool is_forward = turn.previous == kNone || turn.previous > turn.current;
  const auto place = std::find(turn.units.begin(), turn.units.end(), turn.current);
  if (is_forward) return place == turn.units.begin() ? kNone : *(place - 1);
  return place + 1 == turn.units.end() ? kNone : *(place + 1);
}

void UnitValueSync::start_gather(std::size_t unit) {
  const Bucket& range = layout_.buckets[unit];
  units_[unit].buffer = at::empty({range.end - range.begin}, shard_.options());
  units_[unit].work = groups_.of(range)->all_gather(units_[unit].buffer, held_[unit],
                                                    {"parameter unit", static_cast<std::int64_t>(unit)});
}

void UnitValueSync::bind(std::size_t unit, const at::Tensor& flat) {
  const Bucket& range = layout_.buckets[unit];
  for (const std::size_t index : range.parameters) {
    parameters_[index]->data =
        data_view(flat, layout_.offsets[index] - range.begin, layout_, index, absent_[index].requires_grad());
  }
}

void UnitValueSync::release(std::size_t unit) {
  units_[unit].work.wait();
  for (const std::size_t index : layout_.buckets[unit].parameters) parameters_[index]->data = absent_[index];
  free_storage(units_[unit].buffer);
}

void UnitValueSync::settle() {
  const PlainTensors plain;
  for (Turn& turn : turns_) {
    for (const std::size_t unit : {turn.current, turn.ahead}) {
      if (unit != kNone) release(unit);
    }
    turn.previous = turn.current = turn.ahead = kNone;
  }
}

std::int64_t UnitValueSync::resident_bytes() const {
  auto bytes = static_cast<std::int64_t>(shard_.nbytes());
  for (const Unit& unit : units_) {
    if (unit.buffer.defined()) bytes += static_cast<std::int64_t>(unit.buffer.nbytes());
  }
  return bytes;
}

}  // namespace pharos::optim
