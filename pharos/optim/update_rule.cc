#include "pharos/optim/update_rule.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "pharos/base/error.h"

namespace pharos::optim {

at::Tensor UpdateTarget::zeroed_flat() const {
  return at::zeros({num_elements}, at::TensorOptions().dtype(at::kFloat).device(device));
}

at::Tensor UpdateTarget::view_of(const at::Tensor& flat, const UpdateSlot& slot) const {
  return flat.narrow(0, slot.offset, slot.value.numel()).view(slot.value.sizes());
}

UpdateRule::UpdateRule(const std::vector<at::Tensor>& values, const UpdateTarget& target) {
  PHAROS_CHECK(values.size() == target.slots.size(), "one value per slot");
  for (const UpdateSlot& slot : target.slots) places_.push_back({slot.parameter, slot.first_element});
  const auto group_of = [&](const UpdateSlot& slot) -> Group& {
    const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const Group& group) {
      return group.decays == slot.decays && group.learning_rate_scale == slot.learning_rate_scale;
    });
    if (found != groups_.end()) return *found;
    groups_.push_back({.decays = slot.decays,
                       .learning_rate_scale = slot.learning_rate_scale,
                       .indices = {},
                       .values = {},
                       .gradients = {}});
    return groups_.back();
  };
  for (std::size_t index = 0; index < values.size(); ++index) {
    const UpdateSlot& slot = target.slots[index];
    if (slot.value.numel() == 0) continue;
    PHAROS_CHECK(values[index].scalar_type() == at::kFloat && values[index].sizes() == slot.gradient.sizes(),
                 slot.name + ": the updated values are fp32 of the gradient's shape");
    Group& group = group_of(slot);
    group.indices.push_back(index);
    group.values.push_back(values[index]);
    group.gradients.push_back(slot.gradient);
  }
}

void UpdateRule::update(const UpdateInput& input) {
  ++num_updates_;
  if (groups_.empty()) return;
  at::Tensor divisor;
  if (input.gradient_divisor != 1) {
    divisor = at::full({}, input.gradient_divisor, groups_.front().values.front().options().requires_grad(false));
  }
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    UpdateInput own = input;
    own.learning_rate *= groups_[group].learning_rate_scale;
    if (!groups_[group].decays) own.weight_decay = 0;
    update_group(group, own, divisor);
  }
}

void UpdateRule::visit_slot(const StateVisitor& visit, std::size_t slot, std::string_view name,
                            const at::Tensor& tensor) const {
  visit(places_[slot].parameter, name, tensor, places_[slot].first_element);
}

UpdateRule::State::State(const UpdateTarget& target) : flat(target.zeroed_flat()) {
  for (const UpdateSlot& slot : target.slots) views.push_back(target.view_of(flat, slot));
}

std::vector<at::Tensor> UpdateRule::State::views_of(const Group& group) const {
  std::vector<at::Tensor> chosen;
  for (const std::size_t index : group.indices) chosen.push_back(views[index]);
  return chosen;
}

}  // namespace pharos::optim
