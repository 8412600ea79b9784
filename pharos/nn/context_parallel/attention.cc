#include "pharos/nn/context_parallel/attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "pharos/base/error.h"
#include "pharos/nn/context_parallel/zigzag.h"

namespace pharos::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What is known of a sum over keys: the average under the softmax so far, and the log of the sum of exponentials.
struct Partial {
  at::Tensor output;      ///< float32 [batch, heads, queries, width]
  at::Tensor log_of_sum;  ///< float32 [batch, heads, queries]
};

/// o = o₁ e^(L₁ - L) + o₂ e^(L₂ - L), L = log(e^L₁ + e^L₂). `sum` has met a key for every query, `part` need not have.
void merge(Partial& sum, const Partial& part) {
  if (!sum.output.defined()) {
    sum = part;
    return;
  }
  const at::Tensor log_of_sum = at::logaddexp(sum.log_of_sum, part.log_of_sum);
  sum.output.mul_((sum.log_of_sum - log_of_sum).exp_().unsqueeze(-1))
      .addcmul_(part.output, (part.log_of_sum - log_of_sum).exp_().unsqueeze(-1));
  sum.log_of_sum = log_of_sum;
}

/// The same with one more key for every query of a head, whose value is zero.
void merge_sinks(Partial& sum, const at::Tensor& sinks) {
  const at::Tensor log_of_sum = at::logaddexp(sum.log_of_sum, sinks.view({1, -1, 1}));
  sum.output.mul_((sum.log_of_sum - log_of_sum).exp_().unsqueeze(-1));
  sum.log_of_sum = log_of_sum;
}

/// The half-blocks of one layer's attention on one rank, forward and backward.
class Blocks : public torch::CustomClassHolder {
 public:
  Blocks(const AttentionOptions& options, const ForwardContext& context, const ContextParallel& parallel)
      : options_(options), context_(context), parallel_(parallel) {}

  const ContextParallel& parallel() const { return parallel_; }

  std::vector<HalfBlock> of_step(std::int64_t step, std::int64_t local_tokens) const {
    return half_blocks(local_tokens * parallel_.size(), parallel_.rank(), parallel_.source(step), parallel_.size(),
                       options_.window);
  }

  /// query: [batch, heads, part, width]; key, value: [batch, kv heads, part, width].
  Partial forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const HalfBlock& block) const;

  /// Gradients of one product, given the result of the whole softmax.
  struct Gradients {
    at::Tensor query, key, value;  ///< of the inputs' shapes; float32 or of the inputs' type
  };
  struct Result {
    at::Tensor output, log_of_sum, output_grad;
    at::Tensor dot;  ///< float32 [batch, heads, queries, 1]: output_grad · output
  };
  Gradients backward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Result& result,
                     const HalfBlock& block) const;

 private:
  bool drops() const { return context_.training && options_.dropout > 0; }

  /// One kernel instead of scores: for what is causal or whole, on the CPU.
  bool is_fused(const at::Tensor& query, const HalfBlock& block) const {
    return query.is_cpu() && options_.fused && !options_.softcap && !drops() && !is_masked(query.size(2), block);
  }

  /// Beside the diagonal.
  bool is_masked(std::int64_t part, const HalfBlock& block) const {
    const std::int64_t farthest = block.first_query + part - 1 - block.first_key;
    return context_.segments.defined() || (options_.window > 0 && farthest >= options_.window);
  }

  /// Float32 scores, minus infinity where attention is not allowed. With a cap c, `slope` (may be null) becomes that of
  /// c tanh(s / c) by s.
  at::Tensor scores(const at::Tensor& query, const at::Tensor& keys, const HalfBlock& block,
                    at::Tensor* slope = nullptr) const;

  at::Tensor mask_of_dropout(const at::Tensor& like, const HalfBlock& block, std::int64_t part) const {
    const std::int64_t tokens = 2 * part * parallel_.size();
    return dropout_mask(like, options_.dropout, options_.name, context_, {options_.num_global_heads, tokens, tokens},
                        {options_.first_head, block.first_query, block.first_key});
  }

  AttentionOptions options_;
  ForwardContext context_;
  ContextParallel parallel_;
};

at::Tensor Blocks::scores(const at::Tensor& query, const at::Tensor& keys, const HalfBlock& block,
                          at::Tensor* slope) const {
  at::Tensor scores = at::matmul(query, keys.transpose(-1, -2)).to(at::kFloat).mul_(options_.score_scale());
  if (options_.softcap) {
    scores.div_(*options_.softcap).tanh_();
    if (slope != nullptr) *slope = scores.square().neg_().add_(1);
    scores.mul_(*options_.softcap);
  }
  const std::int64_t part = query.size(2);
  if (!block.is_diagonal() && !is_masked(part, block)) return scores;
  const auto place = [&](std::int64_t first) {
    return at::arange(first, first + part, at::TensorOptions().dtype(at::kLong).device(query.device()));
  };
  const at::Tensor distance = place(block.first_query).unsqueeze(1) - place(block.first_key).unsqueeze(0);
  at::Tensor forbidden = distance < 0;
  if (options_.window > 0) forbidden.logical_or_(distance >= options_.window);
  if (context_.segments.defined()) {
    const auto of = [&](std::int64_t first) { return context_.segments.narrow(1, first, part); };
    const at::Tensor other = of(block.first_query).unsqueeze(2) != of(block.first_key).unsqueeze(1);
    forbidden = other.logical_or_(forbidden).unsqueeze(1);
  }
  return scores.masked_fill_(forbidden, -std::numeric_limits<double>::infinity());
}

Partial Blocks::forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const HalfBlock& block) const {
  const std::int64_t group = query.size(1) / key.size(1);
  const at::Tensor keys = repeat_heads(key, group), values = repeat_heads(value, group);
  if (is_fused(query, block)) {
    const std::int64_t width = std::max(query.size(-1), value.size(-1));
    const auto [output, log_of_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
        pad_width(query, width), pad_width(keys, width), pad_width(values, width), 0, block.is_diagonal(), {},
        options_.score_scale());
    return {output.narrow(-1, 0, value.size(-1)).to(at::kFloat), log_of_sum};
  }
  at::Tensor weights = scores(query, keys, block);
  // A query without a key here: its largest score is minus infinity, its weights become 0 and its log minus infinity.
  const at::Tensor largest = weights.amax(-1, true).clamp_min_(std::numeric_limits<float>::lowest());
  weights.sub_(largest).exp_();
  const at::Tensor sum = weights.sum(-1, true);
  weights.div_(sum.clamp_min(std::numeric_limits<float>::min()));
  weights = weights.to(query.scalar_type());
  if (drops()) weights.mul_(mask_of_dropout(weights, block, query.size(2)));
  return {at::matmul(weights, values).to(at::kFloat), sum.log().add_(largest).squeeze(-1)};
}

/// P = e^(S - L), dP = dO Vᵀ, dS = P (dP - dO·O); dV = Pᵀ dO, dQ = dS K scale, dK = dSᵀ Q scale (Dao et al. 2022). A
/// dropout mask M makes them dP = M dO Vᵀ and dV = (M P)ᵀ dO.
Blocks::Gradients Blocks::backward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                   const Result& result, const HalfBlock& block) const {
  const std::int64_t kv_heads = key.size(1), group = query.size(1) / kv_heads;
  const at::Tensor keys = repeat_heads(key, group), values = repeat_heads(value, group);
  const auto sum_of_group = [&](const at::Tensor& gradient) {
    return group == 1 ? gradient : gradient.unflatten(1, {kv_heads, group}).sum(2, false, at::kFloat);
  };
  if (is_fused(query, block)) {
    const std::int64_t query_width = query.size(-1), value_width = value.size(-1);
    const std::int64_t width = std::max(query_width, value_width);
    const auto [query_grad, key_grad, value_grad] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        pad_width(result.output_grad, width), pad_width(query, width), pad_width(keys, width), pad_width(values, width),
        pad_width(result.output, width), result.log_of_sum, 0, block.is_diagonal(), {}, options_.score_scale());
    return {query_grad.narrow(-1, 0, query_width), sum_of_group(key_grad.narrow(-1, 0, query_width)),
            sum_of_group(value_grad.narrow(-1, 0, value_width))};
  }
  const at::ScalarType type = query.scalar_type();
  at::Tensor slope;
  at::Tensor weights = scores(query, keys, block, &slope).sub_(result.log_of_sum.unsqueeze(-1)).exp_();
  at::Tensor weights_grad = at::matmul(result.output_grad, values.transpose(-1, -2)).to(at::kFloat);
  at::Tensor dropped = weights;
  if (drops()) {
    const at::Tensor mask = mask_of_dropout(weights, block, query.size(2));
    weights_grad.mul_(mask);
    dropped = weights * mask;
  }
  const at::Tensor value_grad = at::matmul(dropped.to(type).transpose(-1, -2), result.output_grad);
  weights_grad.sub_(result.dot).mul_(weights).mul_(options_.score_scale());
  if (slope.defined()) weights_grad.mul_(slope);
  const at::Tensor scores_grad = weights_grad.to(type);
  return {at::matmul(scores_grad, keys), sum_of_group(at::matmul(scores_grad.transpose(-1, -2), query)),
          sum_of_group(value_grad)};
}

/// Half `index` of the tokens of [batch, heads, tokens, …].
at::Tensor half(const at::Tensor& tensor, std::int64_t index) {
  const std::int64_t part = tensor.size(2) / 2;
  return tensor.narrow(2, index * part, part);
}

struct ContextParallelAttention : torch::autograd::Function<ContextParallelAttention> {
  /// block: [batch, kv heads, tokens, width + value width], keys and values side by side, contiguous.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& block,
                            const std::optional<at::Tensor>& sinks, const c10::intrusive_ptr<Blocks>& blocks) {
    const std::int64_t tokens = query.size(2), width = query.size(3), value_width = block.size(3) - width;
    BlockExchange exchange(block, blocks->parallel(), "keys and values");
    std::array<Partial, 2> sums;
    for (std::int64_t step = 0; step < blocks->parallel().size(); ++step) {
      const at::Tensor at_hand = exchange.take();
      for (const HalfBlock& one : blocks->of_step(step, tokens)) {
        merge(sums[static_cast<std::size_t>(one.query_half)],
              blocks->forward(half(query, one.query_half), half(at_hand.narrow(3, 0, width), one.key_half),
                              half(at_hand.narrow(3, width, value_width), one.key_half), one));
      }
    }
    if (sinks)
      for (Partial& sum : sums) merge_sinks(sum, *sinks);
    // By token, as the output projection reads it: it then keeps this tensor and no copy.
    const at::Tensor output =
        at::empty({query.size(0), tokens, query.size(1), value_width}, query.options()).transpose(1, 2);
    for (const std::int64_t index : {0, 1}) half(output, index).copy_(sums[static_cast<std::size_t>(index)].output);
    context->save_for_backward(
        {query, block, output, at::cat({sums[0].log_of_sum, sums[1].log_of_sum}, 2), sinks.value_or(at::Tensor())});
    context->saved_data["blocks"] = c10::IValue::make_capsule(blocks);
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto blocks = c10::static_intrusive_pointer_cast<Blocks>(context->saved_data["blocks"].toCapsule());
    const auto saved = context->get_saved_variables();
    const at::Tensor query = saved[0].detach(), block = saved[1].detach(), output = saved[2].detach();
    const at::Tensor output_grad = gradients[0];
    const std::int64_t width = query.size(3), value_width = block.size(3) - width;
    BlockExchange exchange(block, blocks->parallel(), "keys and values again");
    GradientExchange gradient_exchange(blocks->parallel(), "gradients of keys and values");
    const at::Tensor dot = (output_grad * output).sum(-1, true, at::kFloat);
    const at::Tensor query_grad = at::zeros_like(query, query.options().dtype(at::kFloat));
    for (std::int64_t step = 0; step < blocks->parallel().size(); ++step) {
      const at::Tensor at_hand = exchange.take();
      const at::Tensor block_grad = at::zeros_like(at_hand, at_hand.options().dtype(at::kFloat));
      for (const HalfBlock& one : blocks->of_step(step, query.size(2))) {
        const Blocks::Result result{half(output, one.query_half), half(saved[3], one.query_half),
                                    half(output_grad, one.query_half), half(dot, one.query_half)};
        const auto found =
            blocks->backward(half(query, one.query_half), half(at_hand.narrow(3, 0, width), one.key_half),
                             half(at_hand.narrow(3, width, value_width), one.key_half), result, one);
        half(query_grad, one.query_half).add_(found.query);
        half(block_grad.narrow(3, 0, width), one.key_half).add_(found.key);
        half(block_grad.narrow(3, width, value_width), one.key_half).add_(found.value);
      }
      gradient_exchange.give(block_grad);
    }
    // A sink's value is zero: of dS = P (dP - dO·O) there remains -P dO·O, P = e^(sink - L).
    at::Tensor sinks_grad;
    if (saved[4].defined()) {
      const at::Tensor weights = (saved[4].detach().view({1, -1, 1}) - saved[3]).exp_();
      sinks_grad = weights.mul_(dot.squeeze(-1)).sum({0, 2}).neg_();
    }
    return {query_grad.to(query.scalar_type()), gradient_exchange.wait().to(block.scalar_type()), sinks_grad, {}};
  }
};

}  // namespace

at::Tensor context_parallel_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                      const AttentionOptions& options, const ForwardContext& context,
                                      const ContextParallel& parallel, const at::Tensor& sinks) {
  PHAROS_CHECK(parallel.is_split() && context.cache == nullptr, "one rank has all tokens");
  PHAROS_CHECK(!context.segments.defined() || context.segments.size(1) == query.size(2) * parallel.size(),
               "segments must be those of the whole sequence");
  const std::optional<at::Tensor> own_sinks = sinks.defined() ? std::optional(sinks) : std::nullopt;
  return ContextParallelAttention::apply(query, at::cat({key, value}, -1).contiguous(), own_sinks,
                                         c10::make_intrusive<Blocks>(options, context, parallel));
}

}  // namespace pharos::nn
