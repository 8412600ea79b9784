#include "pharos/nn/loss.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
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

/// The same with the columns divided over ranks: three numbers a token are reduced, logits never leave their rank.
struct VocabularyParallelCrossEntropy : torch::autograd::Function<VocabularyParallelCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& labels,
                            std::int64_t vocab_size, const TensorParallel& parallel) {
    const std::int64_t width = logits.size(-1), first = width * parallel.rank();
    at::_assert_async((labels >= 0).logical_and_(labels < vocab_size).all(), "a label is not in the vocabulary");
    const std::int64_t columns = std::clamp<std::int64_t>(vocab_size - first, 0, width);  // that are no padding
    const at::Tensor scores = logits.detach().reshape({-1, width}).to(at::kFloat).contiguous();
    scores.narrow(1, columns, width - columns).fill_(-std::numeric_limits<float>::infinity());
    const at::Tensor largest = scores.amax(1, true);  // -inf where there is nothing but padding
    parallel.group->all_reduce(largest, comm::ReduceOp::kMax, {"largest logits"}).wait();
    scores.sub_(largest);
    const at::Tensor local = labels.reshape({-1, 1}) - first;
    const at::Tensor outside = (local < 0).logical_or_(local >= columns);
    const at::Tensor target = local.masked_fill(outside, 0);
    const at::Tensor sums = at::empty({2, scores.size(0)}, scores.options());
    sums[0].copy_(scores.gather(1, target).masked_fill_(outside, 0).squeeze(1));
    scores.exp_();
    sums[1].copy_(scores.sum(1));
    parallel.group->all_reduce(sums, comm::ReduceOp::kSum, {"logits of labels, sums of exponentials"}).wait();
    // Held outside save_for_backward: backward overwrites the scores, and they are this node's own.
    auto& saved = context->saved_data;
    saved["exponentials"] = scores;
    saved["sum"] = sums[1];
    saved["target"] = target;
    saved["inside"] = outside.logical_not();
    saved["shape"] = logits.sizes().vec();
    saved["type"] = static_cast<std::int64_t>(logits.scalar_type());
    return (sums[1].log() - sums[0]).view(labels.sizes());
  }

  // d/dlogits = g (softmax(logits) - onehot(label)), of this rank's columns.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& saved = context->saved_data;
    at::Tensor scores = saved["exponentials"].toTensor();
    const at::Tensor weight = gradients[0].reshape({-1, 1}).to(at::kFloat);
    scores.mul_(weight / saved["sum"].toTensor().unsqueeze(1));
    scores.scatter_add_(1, saved["target"].toTensor(), weight.neg() * saved["inside"].toTensor());
    const auto shape = saved["shape"].toIntVector();
    const auto type = static_cast<at::ScalarType>(saved["type"].toInt());
    saved.clear();
    return {scores.view(shape).to(type), {}, {}, {}};
  }
};

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, std::int64_t vocab_size,
                         const TensorParallel& parallel) {
  if (!parallel.is_split()) return CrossEntropy::apply(logits, labels, vocab_size);
  return VocabularyParallelCrossEntropy::apply(logits, labels, vocab_size, parallel);
}

}  // namespace pharos::nn
