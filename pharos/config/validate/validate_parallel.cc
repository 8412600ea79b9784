// Rules of parallel sizes, pipeline splits and layouts (bridge-config.md 1.5, 1.17 V1–V3, V6, V13, V14, V21).
#include <algorithm>
#include <numeric>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/config/grammar/pipeline_layout.h"
#include "pharos/config/validate/rule_checker.h"

namespace pharos::config {
namespace {

std::string number(std::int64_t value) { return std::to_string(value); }

void check_grids(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const std::int64_t tensor = model.tensor_model_parallel_size, pipeline = model.pipeline_model_parallel_size,
                     context = model.context_parallel_size, expert = model.expert_model_parallel_size,
                     expert_tensor = expert_tensor_parallel_size_or_default(model), world = check.world_size();
  const std::int64_t dense = tensor * pipeline * context, of_experts = expert_tensor * expert * pipeline;
  const bool dense_fits = world % dense == 0, experts_fit = world % of_experts == 0;
  const std::int64_t needed = std::lcm(dense, of_experts);
  const std::string remedy = world == 1 ? "Start it with --nproc " + number(needed) + ", or use smaller sizes."
                                        : "Start a multiple of " + number(needed) +
                                              " ranks, or use sizes whose products divide " + number(world) + ".";
  const std::vector<std::string> dense_fields = {"model.tensor_model_parallel_size",
                                                 "model.pipeline_model_parallel_size", "model.context_parallel_size"};
  const std::vector<std::string> expert_fields = {
      "model.expert_tensor_parallel_size", "model.expert_model_parallel_size", "model.pipeline_model_parallel_size"};
  const std::string dense_text = "tensor_model_parallel_size (" + number(tensor) +
                                 ") x pipeline_model_parallel_size (" + number(pipeline) +
                                 ") x context_parallel_size (" + number(context) + ") = " + number(dense);
  const std::string expert_text = "expert_tensor_parallel_size (" + number(expert_tensor) +
                                  ") x expert_model_parallel_size (" + number(expert) +
                                  ") x pipeline_model_parallel_size (" + number(pipeline) + ") = " + number(of_experts);
  const std::string start = "world size (" + number(world) + ") is not divisible by ";
  // Without experts of another shape the second factorisation is the first one.
  const bool is_one = of_experts == dense;
  if (!dense_fits && !experts_fit && !is_one) {
    std::vector<std::string> fields = dense_fields;
    fields.insert(fields.end(), expert_fields.begin(), expert_fields.end() - 1);
    check.fail(
        fields,
        start + dense_text + ", nor by " + expert_text + "; the least that both divide is " + number(needed) + ".",
        remedy);
  } else {
    check.require(dense_fits, dense_fields, start + dense_text + ".", remedy);
    check.require(is_one || experts_fit, expert_fields, start + expert_text + ".", remedy);
  }
  if (is_one) return;
  check.require(
      !check.config().dist.use_tp_pp_dp_mapping || pipeline == 1 || tensor * context == expert_tensor * expert,
      {"dist.use_tp_pp_dp_mapping", "model.expert_model_parallel_size", "model.tensor_model_parallel_size"},
      "With dist.use_tp_pp_dp_mapping the pipeline groups of dense and expert layers differ: TP x CP = " +
          number(tensor * context) + ", ETP x EP = " + number(expert_tensor * expert) + ".",
      "Use the default mapping, or equal products.");
}

void check_sequence_split(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const std::int64_t context = model.context_parallel_size;
  check.require(
      context == 1 || model.seq_length % (2 * context) == 0, {"model.seq_length", "model.context_parallel_size"},
      check.show("model.seq_length") + " is not divisible by 2 x context_parallel_size = " + number(2 * context) + ".",
      "Each of the " + number(context) + " ranks takes two equal parts of the sequence.");
  check.require(!model.sequence_parallel || model.seq_length / context % model.tensor_model_parallel_size == 0,
                {"model.seq_length", "model.tensor_model_parallel_size"},
                check.show("model.seq_length") + " cannot be split over " +
                    check.show("model.tensor_model_parallel_size") + " ranks of sequence parallelism.",
                "Use a multiple of " + number(context * model.tensor_model_parallel_size) +
                    " for the sequence length (model.seq_length, dataset.seq_length), or a TP size of " +
                    divisors_text(model.seq_length / context) + ".");
  if (!model.cp_comm_type) return;
  const auto& types = *model.cp_comm_type;
  check.require(types.size() == 1 || !model.num_layers || types.size() == static_cast<std::size_t>(*model.num_layers),
                {"model.cp_comm_type", "model.num_layers"},
                "model.cp_comm_type has " + std::to_string(types.size()) + " entries, not one for each layer.",
                "Give one entry for all layers, or one for each.");
  const bool hierarchical = std::find(types.begin(), types.end(), "a2a+p2p") != types.end();
  check.require(!hierarchical || check.stored("model.hierarchical_context_parallel_sizes") != "null",
                {"model.cp_comm_type", "model.hierarchical_context_parallel_sizes"},
                "model.cp_comm_type = a2a+p2p needs model.hierarchical_context_parallel_sizes.");
  const bool exchanges_heads =
      std::any_of(types.begin(), types.end(), [](const std::string& type) { return type.starts_with("a2a"); });
  check.require(!exchanges_heads || context == 1 || check.purpose() == Purpose::kPlan,
                {"model.cp_comm_type", "model.context_parallel_size"},
                check.show("model.cp_comm_type") +
                    " needs the exchange of heads between context ranks, which this release cannot train with.",
                "Use p2p or all_gather; `pharos plan` accepts it.");
}

void check_overlap_of_experts(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  check.require(!model.delay_wgrad_compute || model.overlap_moe_expert_parallel_comm || !model.num_moe_experts,
                {"model.delay_wgrad_compute", "model.overlap_moe_expert_parallel_comm"},
                "model.delay_wgrad_compute with experts needs model.overlap_moe_expert_parallel_comm.",
                "Set model.delay_wgrad_compute=false.");
  if (!model.overlap_moe_expert_parallel_comm) return;
  const auto rule = [&](bool holds, const std::string& field, const std::string& text) {
    check.require(holds, {"model.overlap_moe_expert_parallel_comm", field},
                  "model.overlap_moe_expert_parallel_comm needs " + text + ".",
                  "Set model.overlap_moe_expert_parallel_comm=false.");
  };
  const auto recomputes = [&](const char* module) {
    return model.recompute_granularity && model.recompute_modules &&
           std::find(model.recompute_modules->begin(), model.recompute_modules->end(), module) !=
               model.recompute_modules->end();
  };
  rule(model.expert_model_parallel_size > 1, "model.expert_model_parallel_size", "an expert parallel size above 1");
  rule(model.moe_token_dispatcher_type != TokenDispatcher::kAllGather, "model.moe_token_dispatcher_type",
       "dispatcher alltoall or flex");
  rule(model.bf16 || model.fp16, "model.bf16", "bf16 or fp16");
  rule(model.pipeline_model_parallel_size == 1 || model.virtual_pipeline_model_parallel_size,
       "model.virtual_pipeline_model_parallel_size", "interleaving when the pipeline size is above 1");
  rule(model.recompute_granularity != RecomputeGranularity::kFull, "model.recompute_granularity",
       "no full recomputation");
  rule(!recomputes("moe") && !recomputes("shared_experts"), "model.recompute_modules",
       "no recomputation of moe or shared_experts");
  rule(!model.moe_shared_expert_overlap, "model.moe_shared_expert_overlap", "no shared-expert overlap");
  rule(model.mtp_num_layers.value_or(0) <= 1, "model.mtp_num_layers", "at most one MTP layer");
}

/// Layers of each stage from first/last-stage counts, accounting, or an even split (V13).
void check_even_split(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const std::int64_t pipeline = model.pipeline_model_parallel_size, chunks = num_model_chunks(model);
  std::vector<std::string> fields = {"model.num_layers", "model.pipeline_model_parallel_size",
                                     "model.virtual_pipeline_model_parallel_size"};
  if (model.account_for_embedding_in_pipeline_split)
    fields.emplace_back("model.account_for_embedding_in_pipeline_split");
  if (model.account_for_loss_in_pipeline_split) fields.emplace_back("model.account_for_loss_in_pipeline_split");
  const bool uneven = model.num_layers_in_first_pipeline_stage || model.num_layers_in_last_pipeline_stage;
  const std::int64_t accounted =
      (model.account_for_embedding_in_pipeline_split ? 1 : 0) + (model.account_for_loss_in_pipeline_split ? 1 : 0);
  check.require(!uneven || accounted == 0,
                {"model.num_layers_in_first_pipeline_stage", "model.num_layers_in_last_pipeline_stage",
                 "model.account_for_embedding_in_pipeline_split", "model.account_for_loss_in_pipeline_split"},
                "Layer counts of the first or last stage exclude counting embedding or loss as layers.");
  std::int64_t layers = *model.num_layers + accounted, stages = pipeline;
  const auto take = [&](const std::optional<std::int64_t>& count, const char* field) {
    if (!count || stages == 0) return;
    layers -= *count;
    --stages;
    check.require(*count % chunks == 0, {field, "model.virtual_pipeline_model_parallel_size"},
                  check.show(field) + " is not divisible by " + number(chunks) + " chunks.");
  };
  take(model.num_layers_in_first_pipeline_stage, "model.num_layers_in_first_pipeline_stage");
  take(model.num_layers_in_last_pipeline_stage, "model.num_layers_in_last_pipeline_stage");
  check.require(layers >= 0, fields, "First and last stage hold more layers than the model has.");
  if (layers < 0 || stages == 0) return;
  check.require(layers % stages == 0, fields,
                number(layers) + (accounted > 0 ? " layers (with embedding or loss counted)" : " layers") +
                    " cannot be split evenly over " + number(stages) + " pipeline stages.",
                "Use a pipeline size of " + divisors_text(*model.num_layers + accounted) +
                    ", another number of layers on one end (model.num_layers_in_first_pipeline_stage, "
                    "model.num_layers_in_last_pipeline_stage), or model.pipeline_model_parallel_layout.");
  check.require(
      layers % stages != 0 || layers / stages % chunks == 0, fields,
      number(layers / stages) + " layers of a pipeline rank cannot be split into " + number(chunks) + " chunks.",
      "Use a virtual pipeline size of " + divisors_text(layers / stages) + ".");
}

void check_layout_content(RuleChecker& check, const std::vector<std::string>& stages) {
  const ModelConfig& model = check.config().model;
  const std::string field = "model.pipeline_model_parallel_layout";
  const auto rule = [&](bool holds, const std::string& text, const std::string& remedy) {
    check.require(holds, {field}, field + " " + text + ".", remedy);
  };
  static constexpr const char* kPlace = "Put all m into the last stage, between its last t and L.";
  std::string all;
  for (const std::string& stage : stages) all += stage;
  const auto count = [&](char c) { return std::count(all.begin(), all.end(), c); };
  rule(count('E') == 1 && all.front() == 'E', "must have exactly one E, at the start", "Begin it with one E.");
  rule(count('L') == 1 && all.back() == 'L', "must have exactly one L, at the end", "End it with one L.");
  rule(count('t') == *model.num_layers,
       "has " + number(count('t')) + " decoder layers, but " + check.show("model.num_layers"),
       "Write t " + number(*model.num_layers) + " times in all (t*N is N of them).");
  const std::int64_t num_prediction = model.mtp_num_layers.value_or(0);
  rule(count('m') == num_prediction,
       "has " + number(count('m')) + " MTP layers, but " + check.show("model.mtp_num_layers"),
       num_prediction == 0 ? "Take m out, or set model.mtp_num_layers."
                           : "Write m " + number(num_prediction) + (num_prediction == 1 ? " time" : " times") +
                                 ", before L, or change model.mtp_num_layers.");
  const auto first_mtp = all.find('m');
  rule(first_mtp == std::string::npos || all.find('t', first_mtp) == std::string::npos,
       "has a decoder layer after an MTP layer", kPlace);
  const std::int64_t pipeline = model.pipeline_model_parallel_size, total = static_cast<std::int64_t>(stages.size());
  const auto with_mtp = std::count_if(stages.begin(), stages.end(),
                                      [](const auto& stage) { return stage.find('m') != std::string::npos; });
  rule(with_mtp <= 1, "has MTP layers on several stages", kPlace);
  if (with_mtp != 1 || total % pipeline != 0) return;
  const auto holder = std::find_if(stages.begin(), stages.end(),
                                   [](const auto& stage) { return stage.find('m') != std::string::npos; });
  const std::int64_t index = holder - stages.begin();
  rule(index / pipeline == total / pipeline - 1, "must have its MTP layers in the last chunk of their rank", kPlace);
  rule(holder->find('L') != std::string::npos, "must have its MTP layers in the stage of L", kPlace);
  rule(total == pipeline || index % pipeline != 0,
       "must not have MTP layers on the first pipeline rank when there are several chunks", kPlace);
}

void check_layout(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const std::string field = "model.pipeline_model_parallel_layout";
  check.require(!model.num_layers_in_first_pipeline_stage && !model.num_layers_in_last_pipeline_stage &&
                    !model.account_for_embedding_in_pipeline_split && !model.account_for_loss_in_pipeline_split,
                {field, "model.num_layers_in_first_pipeline_stage", "model.num_layers_in_last_pipeline_stage"},
                field + " excludes the fields of an uneven split.");
  try {
    const auto stages = parse_pipeline_layout(*model.pipeline_model_parallel_layout);
    const auto total = static_cast<std::int64_t>(stages.size());
    const std::int64_t pipeline = model.pipeline_model_parallel_size;
    check.require(total % pipeline == 0, {field, "model.pipeline_model_parallel_size"},
                  field + " has " + number(total) + " stages, which is no multiple of " +
                      check.show("model.pipeline_model_parallel_size") + ".");
    const auto& chunks = model.virtual_pipeline_model_parallel_size;
    check.require(total % pipeline != 0 || !chunks || total / pipeline == *chunks,
                  {field, "model.virtual_pipeline_model_parallel_size"},
                  field + " has " + number(total / pipeline) + " chunks a rank, but " +
                      check.show("model.virtual_pipeline_model_parallel_size") + ".");
    const bool empty = std::all_of(stages.begin(), stages.end(), [](const auto& stage) { return stage.empty(); });
    if (!empty) check_layout_content(check, stages);
    check.require(!empty, {field}, field + " is empty.");
  } catch (const base::UserError& error) {
    check.fail({field}, error.parts().what, error.parts().fix);
  }
}

}  // namespace

void check_parallelism(RuleChecker& check) {
  check_grids(check);
  check_sequence_split(check);
  check_overlap_of_experts(check);
}

void check_pipeline(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const std::int64_t chunks = model.virtual_pipeline_model_parallel_size.value_or(1);
  check.require(chunks == 1 || model.pipeline_model_parallel_size > 1,
                {"model.virtual_pipeline_model_parallel_size", "model.pipeline_model_parallel_size"},
                check.show("model.virtual_pipeline_model_parallel_size") + " needs a pipeline size above 1.");
  if (!model.num_layers) return;
  if (model.pipeline_model_parallel_layout) {
    check_layout(check);
  } else {
    check_even_split(check);
  }
}

}  // namespace pharos::config
