// Section checkpoint.
#include "pharos/config/schema/schema_builder.h"

namespace pharos::config {

void declare_checkpoint(std::vector<Field>& fields) {
  SectionBuilder checkpoint(fields, "checkpoint", &RunConfig::checkpoint);
  using C = CheckpointConfig;
  static constexpr const char* kExport = "Hugging Face export while training";
  checkpoint.field("save", &C::save, "folder checkpoints go to; unset: checkpoints/ of the run folder");
  checkpoint.field("load", &C::load, "folder to resume from");
  checkpoint
      .field("save_interval", &C::save_interval, "save every N steps and at the end; unset: at the end only; 0: never")
      .unit("steps")
      .min(0);
  checkpoint.field("most_recent_k", &C::most_recent_k, "checkpoints to keep; -1 keeps all").min(-1);
  checkpoint.field("save_retain_interval", &C::save_retain_interval, "checkpoints never deleted").no_effect();
  checkpoint.field("save_optim", &C::save_optim, "save optimizer state");
  checkpoint.field("save_rng", &C::save_rng, "save random state; here it is the seed and the step, always saved")
      .hint();
  checkpoint.field("load_optim", &C::load_optim, "load optimizer state");
  checkpoint.field("load_rng", &C::load_rng, "load random state; here it is the seed and the step").hint();
  checkpoint
      .field("load_main_params_from_ckpt", &C::load_main_params_from_ckpt,
             "load fp32 main parameters; needs load_optim false")
      .later("main parameters without optimizer state");
  checkpoint.field("ckpt_step", &C::ckpt_step, "load this step, not the newest").unit("steps").min(0);
  checkpoint
      .field("exit_on_missing_checkpoint", &C::exit_on_missing_checkpoint,
             "stop when load holds no checkpoint; Pharos always does")
      .hint();
  checkpoint.field("finetune", &C::finetune, "load weights only; start at step 0");
  checkpoint.field("pretrained_checkpoint", &C::pretrained_checkpoint,
                   "checkpoint or Hugging Face folder of initial weights");
  checkpoint.field("ckpt_format", &C::ckpt_format, "Megatron's format names; Pharos writes safetensors with a manifest")
      .hint();
  checkpoint.field("async_save", &C::async_save, "write on another thread while training goes on")
      .later("asynchronous checkpoints");
  checkpoint.field("fully_parallel_save", &C::fully_parallel_save, "spread writing over data-parallel ranks")
      .one_rank();
  checkpoint.field("fully_parallel_load", &C::fully_parallel_load, "spread reading over data-parallel ranks")
      .one_rank();
  checkpoint.field("dist_ckpt_strictness", &C::dist_ckpt_strictness, "what to do with keys that do not match")
      .one_of({"assume_ok_unexpected", "log_unexpected", "log_all", "raise_unexpected", "raise_all",
               "return_unexpected", "return_all", "ignore_all"})
      .hint();
  checkpoint
      .field("dist_ckpt_optim_fully_reshardable", &C::dist_ckpt_optim_fully_reshardable,
             "optimizer state loads in any layout; in Pharos it always does")
      .hint();
  checkpoint
      .field("distrib_optim_fully_reshardable_mem_efficient", &C::distrib_optim_fully_reshardable_mem_efficient,
             "the same with less memory")
      .hint();
  checkpoint
      .field("save_tokenizer_assets", &C::save_tokenizer_assets,
             "copy tokenizer files into the checkpoint; byte and null tokenizers have none")
      .hint();
  checkpoint.field("also_save_hf_checkpoint", &C::also_save_hf_checkpoint, "also write Hugging Face files")
      .later(kExport);
  checkpoint.field("hf_source_path", &C::hf_source_path, "Hugging Face folder whose config is exported")
      .with("checkpoint.also_save_hf_checkpoint");
  checkpoint.field("hf_trust_remote_code", &C::hf_trust_remote_code, "run code of the folder; Pharos never does")
      .no_effect();
  checkpoint.field("hf_distributed_save", &C::hf_distributed_save, "export from all ranks")
      .with("checkpoint.also_save_hf_checkpoint");
  checkpoint.field("hf_save_every_n_ranks", &C::hf_save_every_n_ranks, "every n-th rank exports")
      .min(1)
      .with("checkpoint.also_save_hf_checkpoint");
}

}  // namespace pharos::config
