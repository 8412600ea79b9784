#include "pharos/nn/moe/moe.h"

#include <ATen/ATen.h>

#include "pharos/nn/recompute.h"

namespace pharos::nn {
namespace {

at::Tensor shared_output(const Moe& moe, const at::Tensor& hidden) {
  // The gate has an input of its own: recomputed or not, its gradient is added to that of `hidden` before the experts'.
  const auto compute = [&moe](const std::vector<at::Tensor>& inputs) {
    const at::Tensor output = moe.shared_experts->forward(inputs.back());
    return moe.shared_expert_gate ? output * at::sigmoid(moe.shared_expert_gate->forward(inputs.front())) : output;
  };
  std::vector<at::Tensor> inputs{hidden};
  if (moe.shared_expert_gate) inputs.push_back(hidden);
  return moe.recompute_shared_experts && c10::GradMode::is_enabled() ? recompute(compute, inputs) : compute(inputs);
}

}  // namespace

at::Tensor Moe::forward(const at::Tensor& hidden, const ForwardContext& context) const {
  at::Tensor shared;
  const std::function<void()> compute_shared = [&] { shared = shared_output(*this, hidden); };
  if (shared_experts && !overlaps_shared_experts) compute_shared();
  const Routing routing = router.route(hidden, context, *load);
  const at::Tensor routed = dispatcher->run(
      hidden.flatten(0, 1), routing, pads_to_capacity ? routing.capacity : std::nullopt,
      [this](const ExpertRows& rows) { return experts.forward(rows.rows, rows.counts, rows.probabilities); },
      shared_experts && overlaps_shared_experts ? compute_shared : nullptr);
  const at::Tensor output = routed.view(hidden.sizes());
  return shared.defined() ? output + shared : output;
}

}  // namespace pharos::nn
