#include "pharos/hf/verify/session.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/checkpoint/manifest.h"
#include "pharos/hf/transfer/whole_model.h"
#include "pharos/hf/verify/layout.h"
#include "pharos/hf/weights.h"
#include "pharos/model/groups.h"
#include "pharos/model/stages.h"
#include "pharos/pipeline/run_schedule.h"

namespace pharos::hf {
namespace {

namespace fs = std::filesystem;
using comm::MeshDim;

constexpr const char* kAbsolute = "absolute";

at::Tensor on_host(const at::Tensor& values) { return values.to(at::kCPU, at::kDouble); }

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (on_host(a) - on_host(b)).abs().max().item<double>();
}

/// Learned positions end; an oracle that goes on is another model's.
void check_positions(const config::ModelConfig& model, const Oracle& oracle, const fs::path& path) {
  const std::int64_t tokens = std::max(oracle.input_ids.size(1), oracle.batch_input_ids.size(2));
  if (model.position_embedding_type != config::PositionEmbedding::kLearnedAbsolute || tokens <= model.seq_length)
    return;
  throw base::UserError({.what = "'" + path.string() + "' has " + std::to_string(tokens) +
                                 " tokens a sequence, the model " + std::to_string(model.seq_length) + " positions.",
                         .where = path.string(),
                         .fix = "Give the oracle that was made from this folder."});
}

void check_layout(const config::ModelConfig& model, const VerifyLayout& layout, const Oracle& oracle) {
  std::vector<std::string> problems;
  for (const at::Tensor& batch : {oracle.input_ids, oracle.batch_input_ids[0]}) {
    for (std::string& problem : layout_problems(model, layout, batch.size(0), batch.size(1))) {
      if (std::find(problems.begin(), problems.end(), problem) == problems.end())
        problems.push_back(std::move(problem));
    }
  }
  if (problems.empty()) return;
  throw base::UserError({.what = "The model cannot be divided like that.",
                         .where = "command line",
                         .why = base::join(problems, "; "),
                         .fix = "Choose sizes that divide it."});
}

HfModel read_model(const fs::path& folder) {
  HfModel hf = read_hf_config(folder);
  drop_absent_prediction_layers(hf, checkpoint::SafetensorsSet(folder).names());
  return hf;
}

model::Stage stage_of(const config::ModelConfig& config, const comm::Mesh& mesh, std::int64_t rank) {
  return model::stages_of(config).at(static_cast<std::size_t>(mesh.coordinate(rank, MeshDim::kPipeline)));
}

optim::OptimizerOptions optimizer_options(const Trajectory& trajectory) {
  optim::OptimizerOptions options;
  options.adam = {trajectory.beta1, trajectory.beta2, trajectory.epsilon, true};
  options.clip_grad = trajectory.clip_grad_norm;
  return options;
}

pipeline::Channels make_channels(comm::World& world, const comm::Mesh& mesh) {
  if (mesh.size(MeshDim::kPipeline) == 1) return {};
  const std::vector<std::int64_t> ranks = mesh.group(world.rank(), {MeshDim::kPipeline});
  return {.ascending = &world.group("pp-up", ranks), .descending = &world.group("pp-down", ranks)};
}

}  // namespace

void check_verify(const fs::path& folder, const fs::path& oracle_path, const VerifyLayout& layout) {
  const HfModel hf = read_model(folder);
  const Oracle oracle = read_oracle(oracle_path, folder, *hf.model.vocab_size);
  check_positions(hf.model, oracle, oracle_path);
  check_layout(hf.model, layout, oracle);
  const auto model = declare_whole(hf.model);
  check_weights(model->parameters(), folder, model->mesh(), 0);
}

/// One microbatch through the stages: this rank's part of a batch.
class VerifySession::OnePass : public pipeline::StageRunner {
 public:
  /// labels: undefined without a backward pass.
  OnePass(VerifySession& session, const at::Tensor& tokens, const at::Tensor& labels)
      : session_(session), tokens_(tokens), labels_(labels) {}

  std::vector<pipeline::TensorSpec> boundary(int /*microbatch*/, int /*stage*/) override {
    const config::ModelConfig& config = session_.model_->config();
    const std::int64_t parts = config.sequence_parallel ? config.tensor_model_parallel_size : 1;
    return {{{tokens_.size(0), tokens_.size(1) / parts, *config.hidden_size}, at::kFloat}};
  }

  pipeline::Tensors forward(int /*microbatch*/, int /*chunk*/, pipeline::Tensors inputs) override {
    const model::Transformer& model = *session_.model_;
    if (!inputs.empty()) input_ = labels_.defined() ? inputs.front().requires_grad_() : inputs.front();
    hidden_ = model.hidden_states(input_.defined() ? input_ : tokens_, session_.context_of(tokens_));
    if (!session_.is_last_stage()) return {hidden_.detach().contiguous()};
    if (labels_.defined()) loss_ = model.token_losses(hidden_, labels_).mean();
    return {};
  }

  pipeline::Tensors backward(int /*microbatch*/, int chunk, pipeline::Tensors output_grads) override {
    session_.optimizer_->begin_pass(static_cast<std::size_t>(chunk));
    if (loss_.defined()) {
      loss_.backward();
    } else {
      hidden_.backward(output_grads.front());
    }
    if (!input_.defined()) return {};
    return {input_.grad().contiguous()};
  }

  void weight(int /*microbatch*/, int /*chunk*/) override { throw base::InternalError("no schedule of two passes"); }

  const at::Tensor& hidden() const { return hidden_; }
  double loss() const { return loss_.defined() ? loss_.item<double>() : 0; }

 private:
  VerifySession& session_;
  at::Tensor tokens_, labels_, input_, hidden_, loss_;
};

VerifySession::VerifySession(const fs::path& folder, const fs::path& oracle, comm::World& world,
                             const VerifyLayout& layout, const std::optional<Tolerances>& tolerances)
    : hf_(read_model(folder)),
      oracle_path_(oracle),
      world_(world),
      mesh_(world.size(), layout.sizes()),
      rank_(world.rank()),
      oracle_(read_oracle(oracle, folder, *hf_.model.vocab_size)),
      tolerances_(tolerances.value_or(tolerances_for(hf_.model))) {
  check_positions(hf_.model, oracle_, oracle);
  check_layout(hf_.model, layout, oracle_);
  const auto whole = declare_whole(hf_.model);
  list_tensors(*whole);
  const config::ModelConfig config = divide_model(hf_.model, layout);
  model_ =
      std::make_unique<model::Transformer>(config, stage_of(config, mesh_, rank_), mesh_, rank_,
                                           model::parallel_groups(world, mesh_, config.num_moe_experts.has_value()));
  check_weights(model_->parameters(), folder, mesh_, rank_);
  model_->allocate(world.device());
  load_weights(model_->parameters(), folder, mesh_, rank_);
  const std::vector<tensor::Parameter*> parameters = model_->parameters();
  optimizer_ = std::make_unique<optim::DataParallel>(
      optim::ModelChunks{parameters},
      optim::parallel_groups(world, mesh_, parameters, {.embedding = 0, .output = mesh_.size(MeshDim::kPipeline) - 1}),
      mesh_, rank_, optim::DataParallelOptions{}, optimizer_options(oracle_.trajectory));
  const auto stage = static_cast<int>(mesh_.coordinate(rank_, MeshDim::kPipeline));
  const pipeline::Channels channels = make_channels(world, mesh_);
  forward_passes_ =
      std::make_unique<pipeline::Executor>(pipeline::forward_schedule(config, 1), stage, channels, world.device());
  passes_ = std::make_unique<pipeline::Executor>(pipeline::schedule_of(config, 1), stage, channels, world.device());
}

VerifyResult VerifySession::run() {
  compare_forward();
  compare_backward();
  compare_trajectory();
  return std::move(result_);
}

void VerifySession::add(const std::string& name, double value, double tolerance, const char* unit) {
  result_.checks.push_back({name, value, tolerance, unit});
}

at::Tensor VerifySession::expected(const std::string& name, at::IntArrayRef shape) const {
  return expected_values(oracle_.tensors, oracle_path_, name, shape);
}

at::Tensor VerifySession::own_rows(const at::Tensor& batch) const {
  const std::int64_t rows = batch.size(0) / mesh_.size(MeshDim::kData);
  return batch.narrow(0, rows * mesh_.coordinate(rank_, MeshDim::kData), rows);
}

double VerifySession::largest(double value) {
  if (std::isnan(value)) value = std::numeric_limits<double>::infinity();
  return world_.all().reduce_value(value, comm::ReduceOp::kMax, {"largest difference"});
}

double VerifySession::mean_over_batch(double value) {
  const bool counts = is_last_stage() && mesh_.coordinate(rank_, MeshDim::kTensor) == 0;
  const double mine = counts ? value / static_cast<double>(mesh_.size(MeshDim::kData)) : 0;
  return world_.all().reduce_value(mine, comm::ReduceOp::kSum, {"mean over the batch"});
}

nn::ForwardContext VerifySession::context_of(const at::Tensor& tokens) const {
  nn::ForwardContext context;
  context.positions = at::arange(tokens.size(1), at::TensorOptions().dtype(at::kLong).device(world_.device()));
  context.auxiliary_loss_scale = 0;  // the reference's loss has none
  return context;
}

void VerifySession::compare_forward() {
  const at::NoGradGuard no_grad;
  const bool is_whole = world_.size() == 1;
  if (is_whole) {
    watch_activations();
    watch_routers();
  }
  const at::Tensor tokens = own_rows(oracle_.input_ids).to(world_.device());
  OnePass pass(*this, tokens, {});
  forward_passes_->run(pass, 0);
  if (is_whole) {
    model_->set_activation_tap({});
    leave_routers();
  }
  add("logits", largest(is_last_stage() ? logits_difference(pass.hidden()) : 0), tolerances_.logits, kAbsolute);
  if (oracle_.tensors.find("loss_shifted") == nullptr || tokens.size(1) == 1) return;
  double shifted = 0;
  if (is_last_stage()) {
    const at::Tensor losses = model_->token_losses(pass.hidden(), tokens.roll(-1, 1));
    shifted = losses.narrow(1, 0, tokens.size(1) - 1).mean().item<double>();
  }
  add("loss_shifted", std::abs(mean_over_batch(shifted) - expected("loss_shifted", {1}).item<double>()),
      tolerances_.loss, kAbsolute);
}

double VerifySession::logits_difference(const at::Tensor& hidden) const {
  const std::int64_t vocabulary = *hf_.model.vocab_size, batch = oracle_.input_ids.size(0);
  const at::Tensor logits = model_->own_logits(hidden);
  const at::Tensor reference = own_rows(expected("logits", {batch, oracle_.input_ids.size(1), vocabulary}));
  const std::int64_t first = mesh_.coordinate(rank_, MeshDim::kTensor) * logits.size(-1);
  const std::int64_t count = std::clamp<std::int64_t>(vocabulary - first, 0, logits.size(-1));
  if (count == 0) return 0;  // this rank has padding only
  return largest_difference(logits.narrow(-1, 0, count), reference.narrow(-1, first, count));
}

void VerifySession::watch_activations() {
  model_->set_activation_tap([this](const std::string& part, const at::Tensor& value) {
    const std::string name = "hidden." + part;
    if (oracle_.tensors.find(name) == nullptr) return;
    const at::Tensor reference = expected(name, value.sizes());
    add(name, largest_difference(value, reference),
        tolerances_.hidden * std::max(1.0, reference.abs().max().item<double>() / 5), kAbsolute);
  });
}

double VerifySession::backward(const at::Tensor& tokens, const at::Tensor& labels) {
  OnePass pass(*this, own_rows(tokens).to(world_.device()), own_rows(labels).to(world_.device()));
  optimizer_->begin_step(1);
  passes_->run(pass, 0);
  optimizer_->finish_gradients();
  return mean_over_batch(pass.loss());
}

void VerifySession::compare_backward() {
  const double loss = backward(oracle_.input_ids, oracle_.labels);
  add("loss", std::abs(loss - expected("loss", {1}).item<double>()), tolerances_.loss, kAbsolute);
  compare_gradients();
}

void VerifySession::compare_trajectory() {
  const Trajectory& trajectory = oracle_.trajectory;
  double largest_loss = 0, largest_norm = 0;
  const auto widen = [](double& largest, double difference) {
    if (!std::isnan(largest) && !(difference <= largest)) largest = difference;  // a NaN stays
  };
  for (const OracleStep& step : trajectory.steps) {
    const double loss = backward(oracle_.batch_input_ids[step.batch], oracle_.batch_labels[step.batch]);
    const optim::StepResult done = optimizer_->step(trajectory.learning_rate, trajectory.weight_decay);
    widen(largest_loss, std::abs(loss - step.loss));
    widen(largest_norm, std::abs(done.grad_norm - step.grad_norm));
  }
  add("trajectory.loss", largest_loss, tolerances_.trajectory_loss, kAbsolute);
  add("trajectory.grad_norm", largest_norm, tolerances_.trajectory_grad_norm, kAbsolute);
}

}  // namespace pharos::hf
