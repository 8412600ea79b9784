#include "pharos/nn/context.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "pharos/tensor/random.h"

namespace pharos::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor draw_mask(const at::Tensor& like, double probability, std::uint64_t key,
                     std::vector<std::int64_t> global_shape, const std::vector<std::int64_t>& offset) {
  // The batch axis is the slowest, so its global extent does not enter the index.
  return tensor::dropout_mask(like.sizes().vec(), probability, key, global_shape, offset).to(like.options());
}

struct Dropout : torch::autograd::Function<Dropout> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, double probability, std::int64_t key,
                            const std::vector<std::int64_t>& global_shape, const std::vector<std::int64_t>& offset) {
    context->saved_data["probability"] = probability;
    context->saved_data["key"] = key;
    context->saved_data["global_shape"] = global_shape;
    context->saved_data["offset"] = offset;
    return input * draw_mask(input, probability, static_cast<std::uint64_t>(key), global_shape, offset);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& saved = context->saved_data;
    const at::Tensor mask =
        draw_mask(gradients[0], saved["probability"].toDouble(), static_cast<std::uint64_t>(saved["key"].toInt()),
                  saved["global_shape"].toIntVector(), saved["offset"].toIntVector());
    return {gradients[0] * mask, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor dropout(const at::Tensor& input, double probability, std::string_view name, const ForwardContext& context,
                   std::vector<std::int64_t> global_shape, std::vector<std::int64_t> offset) {
  if (!context.training || probability == 0) return input;
  const std::uint64_t step_seed = tensor::stream_key(context.seed, "dropout of step " + std::to_string(context.step));
  global_shape.insert(global_shape.begin(), input.size(0));
  offset.insert(offset.begin(), context.first_sample);
  return Dropout::apply(input, probability, static_cast<std::int64_t>(tensor::stream_key(step_seed, name)),
                        global_shape, offset);
}

at::Tensor dropout(const at::Tensor& input, double probability, std::string_view name, const ForwardContext& context) {
  const auto sizes = input.sizes();
  return dropout(input, probability, name, context, {sizes.begin() + 1, sizes.end()},
                 std::vector<std::int64_t>(sizes.size() - 1, 0));
}

}  // namespace pharos::nn
