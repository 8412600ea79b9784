#include "pharos/nn/moe/routing/noise.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <functional>
#include <string>

#include "pharos/nn/context_parallel/zigzag.h"
#include "pharos/tensor/random.h"

namespace pharos::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::uint64_t noise_key(const char* kind, std::string_view name, const ForwardContext& context) {
  const std::uint64_t step = tensor::stream_key(context.seed, kind + (" of step " + std::to_string(context.step)));
  return tensor::stream_key(step, name);
}

/// Fills `out`, the part at `offset` of [samples, tokens of a sequence, width].
using Fill = std::function<void(at::Tensor& out, const std::vector<std::int64_t>& shape,
                                const std::vector<std::int64_t>& offset)>;

/// Values for the tokens [batch, tokens, width] of `like`, in its type and on its device.
at::Tensor draw(const at::Tensor& like, const ForwardContext& context, const TokenPlaces& places, const Fill& fill) {
  std::vector<at::Tensor> parts;
  for (const TokenRange& range : places.ranges) {
    parts.push_back(at::empty({like.size(0), range.count, like.size(2)}, at::kFloat));
    // The batch axis is the slowest, so its global extent does not enter the index.
    fill(parts.back(), {like.size(0), places.num_tokens, like.size(2)}, {context.first_sample, range.first, 0});
  }
  return at::cat(parts, 1).to(like.options());
}

/// `values`, with the gradient passed on to `input`.
struct StraightThrough : torch::autograd::Function<StraightThrough> {
  static at::Tensor forward(AutogradContext* /*context*/, const at::Tensor& /*input*/, const at::Tensor& values) {
    return values.clone();
  }
  static variable_list backward(AutogradContext* /*context*/, variable_list gradients) { return {gradients[0], {}}; }
};

/// input * draw(): drawn again in the backward pass instead of being kept.
struct Jitter : torch::autograd::Function<Jitter> {
  static at::Tensor factors(const at::Tensor& like, double epsilon, std::int64_t key, const ForwardContext& context,
                            const TokenPlaces& places) {
    return draw(like, context, places, [&](at::Tensor& out, const auto& shape, const auto& offset) {
      tensor::fill_uniform(out, 1 - epsilon, 1 + epsilon, static_cast<std::uint64_t>(key), shape, offset);
    });
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, double epsilon, std::int64_t key,
                            const ForwardContext& pass, const TokenPlaces& places) {
    std::vector<std::int64_t> ranges;
    for (const TokenRange& range : places.ranges) ranges.insert(ranges.end(), {range.first, range.count});
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["key"] = key;
    context->saved_data["first_sample"] = pass.first_sample;
    context->saved_data["num_tokens"] = places.num_tokens;
    context->saved_data["ranges"] = ranges;
    return input * factors(input, epsilon, key, pass, places);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& saved = context->saved_data;
    ForwardContext pass;
    pass.first_sample = saved["first_sample"].toInt();
    TokenPlaces places{saved["num_tokens"].toInt(), {}};
    const std::vector<std::int64_t> ranges = saved["ranges"].toIntVector();
    for (std::size_t i = 0; i < ranges.size(); i += 2) places.ranges.push_back({ranges[i], ranges[i + 1]});
    return {gradients[0] * factors(gradients[0], saved["epsilon"].toDouble(), saved["key"].toInt(), pass, places),
            {},
            {},
            {},
            {}};
  }
};

}  // namespace

TokenPlaces token_places(std::int64_t count, const TensorParallel& parallel, const ContextParallel& context_parallel) {
  const std::int64_t parts = parallel.splits_tokens() ? parallel.size() : 1;
  const std::int64_t first = parallel.splits_tokens() ? count * parallel.rank() : 0;
  const std::int64_t tokens = count * parts * context_parallel.size();
  return {tokens, zigzag_runs(tokens, context_parallel.rank(), context_parallel.size(), first, count)};
}

at::Tensor jitter(const at::Tensor& hidden, double epsilon, std::string_view name, const ForwardContext& context,
                  const TokenPlaces& places) {
  const std::uint64_t key = noise_key("jitter", name, context);
  return Jitter::apply(hidden, epsilon, static_cast<std::int64_t>(key), context, places);
}

at::Tensor random_logits(const at::Tensor& logits, std::string_view name, const ForwardContext& context,
                         const TokenPlaces& places) {
  const std::uint64_t key = noise_key("random logits", name, context);
  const at::Tensor values = draw(logits, context, places, [&](at::Tensor& out, const auto& shape, const auto& offset) {
    tensor::fill_normal(out, 1, key, shape, offset);
  });
  return StraightThrough::apply(logits, values);
}

at::Tensor biased_logits(const at::Tensor& logits, double deviation, std::string_view name,
                         const ForwardContext& context) {
  const std::uint64_t key = deviation > 0 ? noise_key("biased logits", name, context)
                                          : tensor::stream_key(tensor::stream_key(context.seed, "biased logits"), name);
  at::Tensor bias = at::empty({logits.size(-1)}, at::kFloat);
  tensor::fill_normal(bias, std::abs(deviation), key, {bias.size(0)}, {0});
  return logits + bias.to(logits.options());
}

}  // namespace pharos::nn
