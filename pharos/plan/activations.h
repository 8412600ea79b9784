// Bytes of tensors that a training step of pharos::nn keeps between forward and backward pass, and of what it needs on
// top while it works. Follows what each function of nn/ saves; change one with the other.
#pragma once

#include <cstdint>

#include "pharos/config/run_config.h"

namespace pharos::plan {

/// How tokens are spread over experts: all have as many, or those of all ranks choose experts of one rank.
enum class RoutingBalance { kEven, kWorst };

/// Local sizes of one layer on one rank.
struct LayerShape {
  double batch = 1;     ///< sequences of a microbatch
  double length = 1;    ///< tokens of a sequence on this rank
  double hidden = 0;    ///< width of the residual stream
  double heads = 0;     ///< query heads
  double kv_heads = 0;  ///< heads of keys and values
  double head_width = 0;
  double inner = 0;          ///< width of the MLP
  double element_bytes = 4;  ///< of the compute type
  double parts = 1;          ///< ranks that divide the tokens of the residual stream (sequence parallelism)
  double context = 1;        ///< ranks that divide a sequence; each keeps its own part of everything
  config::DeviceKind device = config::DeviceKind::kCpu;
  RoutingBalance balance = RoutingBalance::kEven;
  double tokens() const { return batch * length; }
  double stream_tokens() const { return tokens() / parts; }  ///< outside of attention and MLP
  double query_width() const { return heads * head_width; }
  double kv_width() const { return kv_heads * head_width; }
};

LayerShape layer_shape(const config::ModelConfig& model, std::int64_t micro_batch_size,
                       config::DeviceKind device = config::DeviceKind::kCpu);
/// Of a training microbatch.
LayerShape layer_shape(const config::RunConfig& config);

/// Core attention alone is computed again in the backward pass.
bool recomputes_core_attention(const config::ModelConfig& model);

/// What one layer keeps, by its halves. Its output belongs to the next layer.
struct KeptByLayer {
  double input = 0;      ///< the residual stream that comes in
  double attention = 0;  ///< beside the input
  double mlp = 0;        ///< with the residual stream between the halves
  double total() const { return input + attention + mlp; }
};

/// `layer` counts from 0 over the whole model: windows and experts may differ. Those of multi-token prediction follow.
KeptByLayer kept_by_layer(const config::ModelConfig& model, const LayerShape& shape, std::int64_t layer);

/// Most bytes alive in the backward pass of a half beside everything kept: gradients on their way and temporaries, less
/// what has been freed by then.
double mlp_backward_bytes(const config::ModelConfig& model, const LayerShape& shape, std::int64_t layer);
double attention_backward_bytes(const config::ModelConfig& model, const LayerShape& shape, std::int64_t layer);

/// Most bytes alive in a forward pass through one layer, of the kind that needs most, that keeps nothing.
double layer_forward_bytes(const config::ModelConfig& model, const LayerShape& shape);

/// What one layer of multi-token prediction keeps, the norms and the projection around it included.
double kept_by_prediction_layer(const config::ModelConfig& model, const LayerShape& shape, std::int64_t depth);

/// What the last stage keeps beside the layers: input and output of the final norm.
double kept_by_head(const config::ModelConfig& model, const LayerShape& shape);
/// Logits, their log-probabilities and their gradient, as many of them as are alive at once.
double logits_bytes(const config::ModelConfig& model, const LayerShape& shape);
/// Most bytes alive in the backward pass of the output layer beside kept tensors and logits.
double output_backward_bytes(const config::ModelConfig& model, const LayerShape& shape);

/// Layer `layer` has experts; those of multi-token prediction are like the last one.
bool has_experts(const config::ModelConfig& model, std::int64_t layer);

}  // namespace pharos::plan
