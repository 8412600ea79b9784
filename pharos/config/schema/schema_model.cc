// Section model: geometry, positions, layers, precision, recomputation.
#include "pharos/config/limits.h"
#include "pharos/config/schema/schema_builder.h"

namespace pharos::config {
namespace {

using C = ModelConfig;

void declare_geometry(SectionBuilder<C>& model) {
  model
      .field("hf_path", &C::hf_path,
             "folder of a Hugging Face model: geometry from its config.json, weights from its safetensors")
      .own();
  model.field("num_layers", &C::num_layers, "decoder layers").min(1).max(kMostLayers).required();
  model.field("hidden_size", &C::hidden_size, "width of the residual stream").min(1).max(kMostWidth).required();
  model.field("num_attention_heads", &C::num_attention_heads, "attention heads; a multiple of the tensor parallel size")
      .min(1)
      .max(kMostHeads)
      .required();
  model
      .field("ffn_hidden_size", &C::ffn_hidden_size,
             "width of the MLP (one half of a gated pair); unset: 4 × hidden_size")
      .min(1)
      .max(8 * kMostWidth);
  model
      .field("num_query_groups", &C::num_query_groups,
             "key/value heads (grouped-query attention); unset: num_attention_heads")
      .min(1)
      .max(kMostHeads);
  model.field("kv_channels", &C::kv_channels, "width of one head; unset: hidden_size / num_attention_heads")
      .min(1)
      .max(kMostHeads);
  model.field("seq_length", &C::seq_length, "tokens of one sample; follows dataset.seq_length when unset")
      .unit("tokens")
      .min(1)
      .max(kMostTokens);
  model.field("vocab_size", &C::vocab_size, "vocabulary before padding; unset: the tokenizer's size")
      .unit("tokens")
      .min(1)
      .max(kMostVocabulary);
  model
      .field("make_vocab_size_divisible_by", &C::make_vocab_size_divisible_by,
             "padding unit, times the tensor parallel size")
      .min(1);
  model.field("should_pad_vocab", &C::should_pad_vocab, "pad the vocabulary; on when the tokenizer sets its size");
  model.field("share_embeddings_and_output_weights", &C::share_embeddings_and_output_weights,
              "tie output weights to the embedding");
}

void declare_positions(SectionBuilder<C>& model) {
  model.field("position_embedding_type", &C::position_embedding_type, "how positions enter the model");
  model.field("rotary_base", &C::rotary_base, "base of the rotary frequencies").above(0);
  model.field("rotary_percent", &C::rotary_percent, "fraction of the head width that is rotated").above(0).max(1);
  model.field("rotary_interleaved", &C::rotary_interleaved, "rotate neighbouring pairs instead of half against half");
  model.field("rope_scaling", &C::rope_scaling, "rescale frequencies as Llama 3.x does");
  model.field("rope_scaling_factor", &C::rope_scaling_factor, "factor of that rescaling")
      .min(1)
      .with("model.rope_scaling");
  model.field("rope_scaling_low_freq_factor", &C::rope_scaling_low_freq_factor, "low-frequency bound of that rescaling")
      .above(0)
      .own()
      .with("model.rope_scaling");
  model
      .field("rope_scaling_high_freq_factor", &C::rope_scaling_high_freq_factor,
             "high-frequency bound of that rescaling")
      .above(0)
      .own()
      .with("model.rope_scaling");
  model
      .field("rope_scaling_original_max_position_embeddings", &C::rope_scaling_original_max_position_embeddings,
             "context length before that rescaling")
      .unit("tokens")
      .min(1)
      .own()
      .with("model.rope_scaling");
  model.field("seq_len_interpolation_factor", &C::seq_len_interpolation_factor, "divide positions by it").above(0);
  model.field("yarn_rotary_scaling_factor", &C::yarn_rotary_scaling_factor, "YaRN: context extension factor").above(0);
  model
      .field("yarn_original_max_position_embeddings", &C::yarn_original_max_position_embeddings,
             "YaRN: original context")
      .min(1);
  model.field("yarn_beta_fast", &C::yarn_beta_fast, "YaRN: rotations above which frequencies stay").above(0);
  model.field("yarn_beta_slow", &C::yarn_beta_slow, "YaRN: rotations below which frequencies are interpolated")
      .above(0);
  model.field("yarn_mscale", &C::yarn_mscale, "YaRN: attention scale");
  model.field("yarn_mscale_all_dim", &C::yarn_mscale_all_dim, "YaRN: attention scale over all dimensions");
  model.field("yarn_correction_range_round_to_int", &C::yarn_correction_range_round_to_int,
              "YaRN: round the ramp's bounds");
  model
      .field("rope_attention_factor", &C::rope_attention_factor,
             "factor on cosines and sines; unset: 1, with YaRN m(mscale) / m(mscale_all_dim)")
      .above(0)
      .own();
  model
      .field("scale_embeddings_by_hidden_size", &C::scale_embeddings_by_hidden_size,
             "embeddings are multiplied by the root of hidden_size")
      .own();
}

void declare_layers(SectionBuilder<C>& model) {
  model.field("normalization", &C::normalization, "kind of the norms");
  model.field("layernorm_epsilon", &C::layernorm_epsilon, "added to the variance").above(0);
  model.field("layernorm_zero_centered_gamma", &C::layernorm_zero_centered_gamma, "norm weights are stored minus one");
  model.field("qk_layernorm", &C::qk_layernorm, "norm on each head's query and key");
  model.field("gated_linear_unit", &C::gated_linear_unit, "gated MLP: down(activation(gate) × up)");
  model.field("activation_func", &C::activation_func, "activation of the MLP");
  model.field("activation_func_clamp_value", &C::activation_func_clamp_value, "clamp gate to ≤ c and up to [−c, c]")
      .above(0);
  model.field("glu_linear_offset", &C::glu_linear_offset, "added to the linear half of a gated MLP")
      .with("model.gated_linear_unit");
  model.field("add_bias_linear", &C::add_bias_linear, "biases in all linear layers");
  model.field("add_qkv_bias", &C::add_qkv_bias, "bias in the q, k, v projection only");
  model
      .field("add_attention_output_bias", &C::add_attention_output_bias,
             "bias in the attention's output projection; unset: add_bias_linear")
      .own();
  model.field("add_mlp_bias", &C::add_mlp_bias, "biases in the MLP; unset: add_bias_linear").own();
  model.field("hidden_dropout", &C::hidden_dropout, "dropout of embeddings and residual branches").min(0).below(1);
  model.field("attention_dropout", &C::attention_dropout, "dropout of attention probabilities").min(0).below(1);
  model
      .field("init_method_std", &C::init_method_std,
             "standard deviation of initial weights; output projections use std/√(2L)")
      .min(0);
  model
      .field("embedding_init_method_std", &C::embedding_init_method_std,
             "the same for embeddings; unset: init_method_std")
      .min(0);
  model.field("softmax_type", &C::softmax_type, "vanilla, or with a sink in the denominator");
  model.field("softmax_scale", &C::softmax_scale, "factor on attention scores; unset: 1/√(width of a head)")
      .above(0)
      .own();
  model.field("attn_logit_softcapping", &C::attn_logit_softcapping, "scores become c tanh(score / c)").above(0).own();
  model.field("final_logit_softcapping", &C::final_logit_softcapping, "logits become c tanh(logit / c)").above(0).own();
  model
      .field("sandwich_layernorm", &C::sandwich_layernorm,
             "norms on what attention and MLP give, beside those on what they take")
      .own();

  model.field("window_size", &C::window_size, "[left, right] tokens of a sliding window");
  model
      .field("window_attn_skip_freq", &C::window_attn_skip_freq,
             "every n-th layer attends fully; or a 0/1 list, 1: window")
      .with("model.window_size");
  model.field("calculate_per_token_loss", &C::calculate_per_token_loss, "weigh tokens, not microbatches, equally");
  model.field("parallel_output", &C::parallel_output, "logits stay split over the vocabulary").one_rank();
  model.field("deterministic_mode", &C::deterministic_mode, "only algorithms that give the same bits every time");
  model.field("mtp_num_layers", &C::mtp_num_layers, "multi-token prediction depth").min(1).max(1000);
  model.field("mtp_loss_scaling_factor", &C::mtp_loss_scaling_factor, "its loss weight; divided by the depth")
      .min(0)
      .with("model.mtp_num_layers");
}

void declare_kernels(SectionBuilder<C>& model) {
  model.field("attention_backend", &C::attention_backend,
              "attention kernel: unfused and local write the steps out, the others are fused");
  model.field("attention_softmax_in_fp32", &C::attention_softmax_in_fp32, "softmax in fp32");
  model.field("cross_entropy_loss_fusion", &C::cross_entropy_loss_fusion, "fused loss kernel").hint();
  model.field("cross_entropy_fusion_impl", &C::cross_entropy_fusion_impl, "which fused loss kernel").hint();
  model.field("masked_softmax_fusion", &C::masked_softmax_fusion, "fused mask and softmax").hint();
  model.field("bias_activation_fusion", &C::bias_activation_fusion, "fused bias and activation").hint();
  model.field("bias_dropout_fusion", &C::bias_dropout_fusion, "fused bias and dropout").hint();
  model.field("apply_rope_fusion", &C::apply_rope_fusion, "fused rotary kernel").hint();
  model.field("persist_layer_norm", &C::persist_layer_norm, "persistent norm kernel").hint();
  model
      .field("gradient_accumulation_fusion", &C::gradient_accumulation_fusion,
             "weight gradients straight into the main gradient; Pharos always does")
      .hint();
}

void declare_latent_attention(SectionBuilder<C>& model) {
  static constexpr const char* kWith = "model.multi_latent_attention";
  model.field("multi_latent_attention", &C::multi_latent_attention, "compressed q and kv (DeepSeek)");
  model.field("q_lora_rank", &C::q_lora_rank, "rank of compressed q; null: direct projection").min(1).with(kWith);
  model.field("kv_lora_rank", &C::kv_lora_rank, "rank of compressed kv").min(1).with(kWith);
  model.field("qk_head_dim", &C::qk_head_dim, "per-head width without rotation").min(1).with(kWith);
  model.field("qk_pos_emb_head_dim", &C::qk_pos_emb_head_dim, "per-head width with rotation").min(1).with(kWith);
  model.field("v_head_dim", &C::v_head_dim, "per-head width of v").min(1).with(kWith);
  model.field("rope_type", &C::rope_type, "rotation of multi-latent attention").with(kWith);
  model.field("rotary_scaling_factor", &C::rotary_scaling_factor, "its YaRN factor").above(0).with(kWith);
  model.field("original_max_position_embeddings", &C::original_max_position_embeddings, "its YaRN original context")
      .min(1)
      .with(kWith);
  model.field("beta_fast", &C::beta_fast, "its YaRN bound").above(0).with(kWith);
  model.field("beta_slow", &C::beta_slow, "its YaRN bound").above(0).with(kWith);
  model.field("mscale", &C::mscale, "its YaRN attention scale").with(kWith);
  model.field("mscale_all_dim", &C::mscale_all_dim, "its YaRN attention scale over all dimensions").with(kWith);
  model.field("mla_rotary_interleaved", &C::mla_rotary_interleaved, "it rotates pairs (2i, 2i+1) instead of halves")
      .own()
      .with(kWith);
  model
      .field("mla_latent_layernorm_epsilon", &C::mla_latent_layernorm_epsilon,
             "epsilon of the norms of its latents; unset: layernorm_epsilon")
      .above(0)
      .own()
      .with(kWith);
}

void declare_model_precision(SectionBuilder<C>& model) {
  model.field("fp16", &C::fp16, "compute in fp16; set by mixed_precision");
  model.field("bf16", &C::bf16, "compute in bf16; set by mixed_precision");
  model.field("params_dtype", &C::params_dtype, "type of the weights; set by mixed_precision");
  model.field("pipeline_dtype", &C::pipeline_dtype, "type of tensors between stages; unset: params_dtype").one_rank();
  model.field("recompute_granularity", &C::recompute_granularity,
              "recompute activations: whole layers or chosen modules");
  model.field("recompute_method", &C::recompute_method,
              "full recomputation: uniform chunks, or the first layers of a stage");
  model.field("recompute_num_layers", &C::recompute_num_layers, "uniform: layers of a chunk; block: layers of a stage")
      .min(1);
  model.field("recompute_modules", &C::recompute_modules, "selective recomputation: which modules; unset: core_attn")
      .one_of({"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"});
}

}  // namespace

void declare_model(std::vector<Field>& fields) {
  SectionBuilder model(fields, "model", &RunConfig::model);
  declare_geometry(model);
  declare_positions(model);
  declare_layers(model);
  declare_kernels(model);
  declare_latent_attention(model);
  declare_model_precision(model);
}

}  // namespace pharos::config
