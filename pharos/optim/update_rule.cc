#include "pharos/optim/update_rule.h"

#include <ATen/Functions.h>

#include "pharos/base/error.h"

namespace pharos::optim {

UpdateRule::UpdateRule(std::vector<at::Tensor> values, const GradientBuffer& gradients) {
  PHAROS_CHECK(values.size() == gradients.parameters().size(), "one value per parameter");
  for (const bool decays : {true, false}) {
    Group group{.decays = decays, .indices = {}, .values = {}, .gradients = {}};
    for (std::size_t index = 0; index < values.size(); ++index) {
      if (gradients.parameters()[index]->weight_decay != decays) continue;
      PHAROS_CHECK(
          values[index].scalar_type() == at::kFloat && values[index].sizes() == gradients.layout().shapes[index],
          gradients.parameters()[index]->name + ": the updated values are fp32 of the parameter's shape");
      group.indices.push_back(index);
      group.values.push_back(values[index]);
      group.gradients.push_back(gradients.parameters()[index]->main_grad);
    }
    if (!group.values.empty()) groups_.push_back(std::move(group));
  }
}

void UpdateRule::update(const UpdateInput& input) {
  ++num_updates_;
  at::Tensor divisor;
  if (input.gradient_divisor != 1) {
    divisor = at::full({}, input.gradient_divisor, groups_.front().values.front().options().requires_grad(false));
  }
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    update_group(group, input, groups_[group].decays ? input.weight_decay : 0.0, divisor);
  }
}

UpdateRule::State::State(const GradientBuffer& gradients) : flat(at::zeros_like(gradients.flat())) {
  for (std::size_t index = 0; index < gradients.parameters().size(); ++index) {
    views.push_back(flat_view(flat, gradients.layout(), index));
  }
}

std::vector<at::Tensor> UpdateRule::State::views_of(const Group& group) const {
  std::vector<at::Tensor> chosen;
  for (const std::size_t index : group.indices) chosen.push_back(views[index]);
  return chosen;
}

}  // namespace pharos::optim
