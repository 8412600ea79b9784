#include "pharos/nn/loss.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>

namespace pharos::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& labels,
                            std::int64_t vocab_size) {
    const std::int64_t width = logits.size(-1);
    at::Tensor scores = logits.detach().reshape({-1, width}).to(at::kFloat).contiguous();
    if (vocab_size < width)
      scores.narrow(1, vocab_size, width - vocab_size).fill_(-std::numeric_limits<float>::infinity());
    at::_log_softmax_out(scores, scores, 1, false);
    const at::Tensor targets = labels.reshape({-1, 1});
    // Held outside save_for_backward: backward overwrites it, and it is this node's own.
    context->saved_data["log_probabilities"] = scores;
    context->saved_data["targets"] = targets;
    context->saved_data["shape"] = logits.sizes().vec();
    context->saved_data["type"] = static_cast<std::int64_t>(logits.scalar_type());
    return scores.gather(1, targets).neg_().view(labels.sizes());
  }

  // d/dlogits = g (softmax(logits) - onehot(label)).
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    at::Tensor scores = context->saved_data["log_probabilities"].toTensor();
    const at::Tensor targets = context->saved_data["targets"].toTensor();
    const at::Tensor weight = gradients[0].reshape({-1, 1}).to(at::kFloat);
    scores.exp_().mul_(weight);
    scores.scatter_add_(1, targets, weight.neg());
    const auto shape = context->saved_data["shape"].toIntVector();
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    context->saved_data.clear();
    return {scores.view(shape).to(type), {}, {}};
  }
};

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, std::int64_t vocab_size) {
  return CrossEntropy::apply(logits, labels, vocab_size);
}

}  // namespace pharos::nn
