#include <nlohmann/json.hpp>

#include "pharos/pipeline/render.h"
#include "pharos/plan/render.h"

namespace pharos::plan {
namespace {

using nlohmann::json;

json parameters_json(const ParameterPlan& parameters) {
  json components = json::object();
  for (const ComponentParameters& component : parameters.components) {
    components[component.name] = {{"total", component.total}, {"on_rank", component.on_rank}};
  }
  return {{"total", parameters.total},
          {"active", parameters.active},
          {"components", components},
          {"on_rank", parameters.ranks[static_cast<std::size_t>(parameters.largest_rank)].elements}};
}

json memory_json(const MemoryPlan& memory) {
  json components = json::object();
  for (const MemoryPart& part : memory.parts) components[part.key] = part.bytes;
  return {{"peak_bytes", memory.peak_bytes},
          {"worst_peak_bytes", memory.worst_peak_bytes > 0 ? json(memory.worst_peak_bytes) : json()},
          {"phase", memory.phase},
          {"pipeline_rank", memory.pipeline_rank},
          {"components", components},
          {"peak_bytes_of_pipeline_ranks", memory.peak_bytes_of_ranks}};
}

json communication_json(const CommunicationPlan& communication) {
  json parts = json::array();
  for (const CommunicationPart& part : communication.parts) {
    parts.push_back({{"dimension", part.dimension},
                     {"ranks", part.ranks},
                     {"purpose", part.purpose},
                     {"operation", part.operation},
                     {"calls", part.calls},
                     {"whole_bytes", part.whole_bytes},
                     {"bytes", part.bytes()}});
  }
  return {{"pipeline_rank", communication.pipeline_rank}, {"bytes_per_step", communication.bytes()}, {"parts", parts}};
}

json schedules_json(const PipelinePlan& pipeline) {
  json schedules = json::array();
  for (const OtherSchedule& other : pipeline.schedules) {
    json one = {{"name", other.name}, {"is_planned", other.is_planned}, {"num_chunks", other.num_chunks}};
    if (!other.refusal.empty()) {
      one["refusal"] = other.refusal;
    } else {
      one.update({{"bubble", other.bubble},
                  {"span", other.span},
                  {"peak_rank_shares", other.peak_rank_shares},
                  {"has_planned_stages", other.has_planned_stages},
                  {"peak_activation_bytes", other.peak_bytes}});
    }
    schedules.push_back(one);
  }
  return schedules;
}

json pipeline_json(const PipelinePlan& pipeline) {
  const pipeline::Timeline& timeline = pipeline.timeline;
  const pipeline::StageCosts& costs = pipeline.costs.costs;
  json stages = json::array(), ranks = json::array();
  for (std::size_t i = 0; i < pipeline.chunks.size(); ++i) {
    json stage = {{"pipeline_rank", pipeline.chunks[i].pipeline_rank},
                  {"num_layers", pipeline.chunks[i].num_layers},
                  {"forward", costs.forward[i]},
                  {"backward", costs.backward[i]},
                  {"weight", costs.weight[i]},
                  {"activation_bytes", costs.activation_bytes[i]},
                  {"weight_bytes", costs.weight_bytes[i]}};
    if (i + 1 < pipeline.chunks.size()) stage["transfer"] = costs.transfer[i];
    stages.push_back(stage);
  }
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const pipeline::RankTimeline& line = timeline.ranks[rank];
    const RankTransfers& moved = pipeline.transfers[rank];
    ranks.push_back({{"bubble", line.bubble},
                     {"peak_rank_shares", pipeline::rank_shares(line.peak_in_flight, timeline.schedule)},
                     {"sent_bytes", moved.sent_bytes},
                     {"received_bytes", moved.received_bytes},
                     {"num_sent", moved.num_sent},
                     {"num_received", moved.num_received},
                     {"peak_activation_bytes", line.peak_bytes}});
  }
  json better_layout;
  if (const auto& better = pipeline.better_layout)
    better_layout = {{"arguments", better->arguments}, {"span", better->span}, {"bubble", better->bubble}};
  return {{"schedule", timeline.schedule.name},
          {"num_chunks", timeline.schedule.num_chunks},
          {"num_microbatches", timeline.schedule.num_microbatches},
          {"time_unit", pipeline.costs.time_unit},
          {"costs", pipeline.costs.source},
          {"span", timeline.span},
          {"bubble", timeline.bubble},
          {"ideal_span", pipeline.ideal_span()},
          {"bubble_parts",
           {{"schedule", pipeline.bubble_schedule},
            {"imbalance", pipeline.bubble_imbalance},
            {"transfers", pipeline.bubble_transfers}}},
          {"busiest_rank", pipeline.busiest_rank ? json(*pipeline.busiest_rank) : json()},
          {"better_layout", better_layout},
          {"transfer_bytes", pipeline.boundary_bytes},
          {"stages", stages},
          {"ranks", ranks},
          {"schedules", schedules_json(pipeline)}};
}

json dataset_json(const DatasetPlan& dataset) {
  json files = json::array();
  for (const DataFile& file : dataset.files) {
    files.push_back({{"prefix", file.prefix},
                     {"found", file.found},
                     {"weight", file.weight},
                     {"sequences", file.sequences},
                     {"documents", file.documents},
                     {"tokens", file.tokens},
                     {"train_tokens", file.train_tokens},
                     {"epochs", file.epochs ? json(*file.epochs) : json()}});
  }
  return {{"mock", dataset.is_mock}, {"files", files}};
}

json layout_json(const Plan& plan, bool with_ranks) {
  using comm::MeshDim;
  const comm::Mesh& mesh = plan.mesh;
  const std::vector<MeshDim> dims{MeshDim::kTensor,       MeshDim::kContext, MeshDim::kData,      MeshDim::kPipeline,
                                  MeshDim::kExpertTensor, MeshDim::kExpert,  MeshDim::kExpertData};
  json layout = {{"world_size", mesh.world_size()}};
  for (const MeshDim dim : dims) layout["sizes"][comm::mesh_dim_name(dim)] = mesh.size(dim);
  for (const ModelChunk& chunk : plan.chunks) {
    layout["stages"].push_back({{"pipeline_rank", chunk.pipeline_rank},
                                {"first_layer", chunk.first_layer},
                                {"num_layers", chunk.num_layers},
                                {"num_prediction_layers", chunk.num_prediction_layers},
                                {"embedding", chunk.embedding},
                                {"output", chunk.output}});
  }
  if (!with_ranks) return layout;
  layout["groups"] = json::object();
  for (const MeshDim dim : plan.dims) {
    if (mesh.size(dim) > 1) layout["groups"][comm::mesh_dim_name(dim)] = mesh.groups({dim});
  }
  for (std::int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    json one = {{"rank", rank}, {"groups", json::object()}};
    for (const MeshDim dim : plan.dims) {
      one[comm::mesh_dim_name(dim)] = mesh.coordinate(rank, dim);
      if (mesh.size(dim) > 1) one["groups"][comm::mesh_dim_name(dim)] = mesh.group(rank, {dim});
    }
    layout["ranks"].push_back(one);
  }
  return layout;
}

}  // namespace

json to_json(const Plan& plan, bool with_ranks) {
  const StepPlan& steps = plan.steps;
  const CheckpointPlan& checkpoint = plan.checkpoint;
  return {{"recipe", plan.recipe},
          {"parameters", parameters_json(plan.parameters)},
          {"memory", memory_json(plan.memory)},
          {"communication", communication_json(plan.communication)},
          {"pipeline", plan.pipeline ? pipeline_json(*plan.pipeline) : json()},
          {"megatron",
           {{"weight_and_optimizer_bytes", plan.megatron.weight_and_optimizer_bytes},
            {"activation_bytes", plan.megatron.activations.total_bytes},
            {"total_bytes", plan.megatron.weight_and_optimizer_bytes + plan.megatron.activations.total_bytes},
            {"lines", plan.megatron_lines}}},
          {"flops",
           {{"step", plan.flops.step},
            {"token", plan.flops.token},
            {"total", plan.flops.total},
            {"full_attention_step", plan.flops.full_attention_step}}},
          {"run",
           {{"iterations", steps.iterations},
            {"samples", steps.samples},
            {"tokens", steps.tokens},
            {"tokens_per_step", steps.tokens_per_step},
            {"global_batch_size", steps.global_batch_size},
            {"num_microbatches", steps.num_microbatches}}},
          {"dataset", dataset_json(plan.dataset)},
          {"evaluations",
           {{"during_training", plan.evaluations.during_training},
            {"at_end", plan.evaluations.at_end},
            {"samples_each", plan.evaluations.samples_each}}},
          {"checkpoint",
           {{"tensor_bytes", checkpoint.tensor_bytes},
            {"size_bytes", checkpoint.size_bytes},
            {"num_saves", checkpoint.num_saves},
            {"num_kept", checkpoint.num_kept},
            {"kept_bytes", checkpoint.kept_bytes()}}},
          {"layout", layout_json(plan, with_ranks)},
          {"notes", plan.notes}};
}

}  // namespace pharos::plan
