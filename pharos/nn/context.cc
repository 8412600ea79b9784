#include "pharos/nn/context.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "pharos/tensor/random.h"

namespace pharos::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::uint64_t dropout_key(std::string_view name, const ForwardContext& context) {
  return tensor::stream_key(tensor::stream_key(context.seed, "dropout of step " + std::to_string(context.step)), name);
}

/// `runs`: first and count, by turns, along axis 1, each at its own place of the global tensor; empty: one run that
/// starts at `offset`.
at::Tensor draw_mask(const at::Tensor& like, double probability, std::uint64_t key,
                     const std::vector<std::int64_t>& global_shape, std::vector<std::int64_t> offset,
                     const std::vector<std::int64_t>& runs = {}) {
  // The batch axis is the slowest, so its global extent does not enter the index.
  std::vector<std::int64_t> shape = like.sizes().vec();
  const auto draw = [&] { return tensor::dropout_mask(shape, probability, key, global_shape, offset); };
  if (runs.empty()) return draw().to(like.options());
  std::vector<at::Tensor> masks;
  for (std::size_t i = 0; i < runs.size(); i += 2) {
    offset[1] = runs[i];
    shape[1] = runs[i + 1];
    masks.push_back(draw());
  }
  return at::cat(masks, 1).to(like.options());
}

struct Dropout : torch::autograd::Function<Dropout> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, double probability, std::int64_t key,
                            const std::vector<std::int64_t>& global_shape, const std::vector<std::int64_t>& offset,
                            const std::vector<std::int64_t>& runs) {
    context->saved_data["probability"] = probability;
    context->saved_data["key"] = key;
    context->saved_data["global_shape"] = global_shape;
    context->saved_data["offset"] = offset;
    context->saved_data["runs"] = runs;
    return input * draw_mask(input, probability, static_cast<std::uint64_t>(key), global_shape, offset, runs);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& saved = context->saved_data;
    const at::Tensor mask =
        draw_mask(gradients[0], saved["probability"].toDouble(), static_cast<std::uint64_t>(saved["key"].toInt()),
                  saved["global_shape"].toIntVector(), saved["offset"].toIntVector(), saved["runs"].toIntVector());
    return {gradients[0] * mask, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor dropout(const at::Tensor& input, double probability, std::string_view name, const ForwardContext& context,
                   std::vector<std::int64_t> global_shape, std::vector<std::int64_t> offset) {
  if (!context.training || probability == 0) return input;
  global_shape.insert(global_shape.begin(), input.size(0));
  offset.insert(offset.begin(), context.first_sample);
  return Dropout::apply(input, probability, static_cast<std::int64_t>(dropout_key(name, context)), global_shape, offset,
                        std::vector<std::int64_t>{});
}

at::Tensor dropout(const at::Tensor& input, double probability, std::string_view name, const ForwardContext& context,
                   std::int64_t num_tokens, const std::vector<TokenRange>& ranges) {
  if (!context.training || probability == 0) return input;
  std::vector<std::int64_t> runs;
  for (const TokenRange& range : ranges) runs.insert(runs.end(), {range.first, range.count});
  return Dropout::apply(input, probability, static_cast<std::int64_t>(dropout_key(name, context)),
                        std::vector<std::int64_t>{input.size(0), num_tokens, input.size(2)},
                        std::vector<std::int64_t>{context.first_sample, 0, 0}, runs);
}

at::Tensor dropout_mask(const at::Tensor& like, double probability, std::string_view name,
                        const ForwardContext& context, std::vector<std::int64_t> global_shape,
                        std::vector<std::int64_t> offset) {
  global_shape.insert(global_shape.begin(), like.size(0));
  offset.insert(offset.begin(), context.first_sample);
  return draw_mask(like, probability, dropout_key(name, context), global_shape, std::move(offset));
}

at::Tensor dropout(const at::Tensor& input, double probability, std::string_view name, const ForwardContext& context) {
  const auto sizes = input.sizes();
  return dropout(input, probability, name, context, {sizes.begin() + 1, sizes.end()},
                 std::vector<std::int64_t>(sizes.size() - 1, 0));
}

}  // namespace pharos::nn
