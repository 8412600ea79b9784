#include "pharos/optim/adamw.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>

#include <optional>

#include "pharos/base/error.h"

namespace pharos::optim {

AdamW::AdamW(const std::vector<at::Tensor>& values, const UpdateTarget& target, const AdamWOptions& options)
    : UpdateRule(values, target),
      options_(options),
      exp_avg_(target),
      exp_avg_sq_(target),
      started_at_(target.slots.size(), 0) {
  for (const Group& group : groups()) lists_.push_back({exp_avg_.views_of(group), exp_avg_sq_.views_of(group), {}});
  count_steps();
}

/// One number of steps for all slots that started together, shared by their groups.
void AdamW::count_steps() {
  steps_.clear();
  for (std::size_t group = 0; group < groups().size(); ++group) {
    lists_[group].steps.clear();
    for (const std::size_t slot : groups()[group].indices) {
      at::Tensor& step = steps_[started_at_[slot]];
      if (!step.defined()) step = at::zeros({}, exp_avg_.flat.options());
      lists_[group].steps.push_back(step);
    }
  }
}

void AdamW::set_num_updates(std::int64_t num_updates, const std::vector<std::int64_t>& started_at) {
  PHAROS_CHECK(started_at.size() == started_at_.size(), "one start per slot");
  UpdateRule::set_num_updates(num_updates, started_at);
  started_at_ = started_at;
  count_steps();
}

void AdamW::for_each_state(const StateVisitor& visit) {
  for (std::size_t index = 0; index < exp_avg_.views.size(); ++index) {
    visit_slot(visit, index, "exp_avg", exp_avg_.views[index]);
    visit_slot(visit, index, "exp_avg_sq", exp_avg_sq_.views[index]);
  }
}

void AdamW::update_group(std::size_t group, const UpdateInput& input, const at::Tensor& divisor) {
  const Group& tensors = groups()[group];
  const Lists& lists = lists_[group];
  for (auto& [started_at, step] : steps_) step.fill_(num_updates() - started_at);
  const std::optional<at::Tensor> scale = divisor.defined() ? std::optional(divisor) : std::nullopt;
  const auto fused = options_.decoupled_weight_decay ? &at::_ops::_fused_adamw_::call : &at::_ops::_fused_adam_::call;
  fused(tensors.values, tensors.gradients, lists.exp_avg, lists.exp_avg_sq, {}, lists.steps, input.learning_rate,
        options_.beta1, options_.beta2, input.weight_decay, options_.epsilon, /*amsgrad=*/false, /*maximize=*/false,
        scale,
        /*found_inf=*/std::nullopt);
}

}  // namespace pharos::optim
