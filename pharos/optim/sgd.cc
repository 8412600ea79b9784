#include "pharos/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>

#include <optional>

namespace pharos::optim {

Sgd::Sgd(const std::vector<at::Tensor>& values, const UpdateTarget& target, double momentum)
    : UpdateRule(values, target), momentum_(momentum), momentum_buffer_(target) {
  for (const Group& group : groups()) buffers_.push_back(momentum_buffer_.views_of(group));
}

void Sgd::for_each_state(const StateVisitor& visit) {
  for (std::size_t index = 0; index < momentum_buffer_.views.size(); ++index) {
    visit_slot(visit, index, "momentum_buffer", momentum_buffer_.views[index]);
  }
}

void Sgd::update_group(std::size_t group, const UpdateInput& input, const at::Tensor& divisor) {
  const Group& tensors = groups()[group];
  const std::optional<at::Tensor> scale = divisor.defined() ? std::optional(divisor) : std::nullopt;
  // The buffers start at zero, so that the first update needs no case of its own.
  at::_fused_sgd_(tensors.values, tensors.gradients, buffers_[group], input.weight_decay, momentum_,
                  input.learning_rate,
                  /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false, scale,
                  /*found_inf=*/std::nullopt);
}

}  // namespace pharos::optim
