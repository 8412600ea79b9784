#include "pharos/train/forward_backward.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/lens/span.h"
#include "pharos/pipeline/executor.h"
#include "pharos/pipeline/schedule.h"

namespace pharos::train {
namespace {

struct MicrobatchLoss {
  at::Tensor sum;     ///< scalar, part of the autograd graph while training
  at::Tensor tokens;  ///< scalar
};

MicrobatchLoss masked_loss(const model::Transformer& model, const Microbatch& batch,
                           const nn::ForwardContext& context) {
  const at::Tensor losses = model.token_losses(model.hidden_states(batch.tokens, context), batch.labels);
  return {(losses * batch.loss_mask).sum(), batch.loss_mask.sum()};
}

class TrainingStage : public pipeline::StageRunner {
 public:
  TrainingStage(model::Transformer& model, const config::RunConfig& config, const StepInput& input, StepTimes* times)
      : model_(model), config_(config), input_(input), times_(times) {}

  void forward(int microbatch, int) override {
    PHAROS_SPAN(span, lens::Group::kMicrobatch, "megatron.microbatch.forward");
    const std::int64_t start = base::monotonic_ns();
    const Microbatch batch = [&] {
      PHAROS_SPAN(wait_span, lens::Group::kDataLoading, "megatron.dataloader.wait");
      return input_.microbatch(microbatch);
    }();
    if (times_ != nullptr) times_->data_wait_ns += base::monotonic_ns() - start;
    nn::ForwardContext context;
    context.positions = batch.positions;
    context.segments = batch.segments;
    context.training = true;
    context.seed = static_cast<std::uint64_t>(config_.rng.seed);
    context.step = input_.step;
    context.first_sample = batch.first_sample;
    in_flight_[microbatch] = masked_loss(model_, batch, context);
  }

  void backward(int microbatch, int) override {
    PHAROS_SPAN(span, lens::Group::kMicrobatch, "megatron.microbatch.backward");
    const MicrobatchLoss loss = std::move(in_flight_.extract(microbatch).mapped());
    const double tokens = loss.tokens.item<double>();
    double scale = input_.loss_scale;
    if (!config_.model.calculate_per_token_loss) scale /= std::max(1.0, tokens) * input_.num_microbatches;
    torch::autograd::backward({loss.sum}, {at::full_like(loss.sum, scale)});
    sums_.loss += loss.sum.item<double>();
    sums_.tokens += tokens;
  }

  void weight(int, int) override {
    throw base::InternalError("this stage computes weight gradients in its backward pass");
  }

  const LossSums& sums() const { return sums_; }

 private:
  model::Transformer& model_;
  const config::RunConfig& config_;
  const StepInput& input_;
  StepTimes* times_;
  std::map<int, MicrobatchLoss> in_flight_;
  LossSums sums_;
};

class EvaluationStage : public pipeline::StageRunner {
 public:
  EvaluationStage(model::Transformer& model, const MicrobatchProvider& microbatch)
      : model_(model), microbatch_(microbatch) {}

  void forward(int microbatch, int) override {
    PHAROS_SPAN(span, lens::Group::kMicrobatch, "megatron.microbatch.forward");
    const Microbatch batch = microbatch_(microbatch);
    nn::ForwardContext context;
    context.positions = batch.positions;
    context.segments = batch.segments;
    const MicrobatchLoss loss = masked_loss(model_, batch, context);
    sums_.loss += loss.sum.item<double>();
    sums_.tokens += loss.tokens.item<double>();
  }
  void backward(int, int) override { throw base::InternalError("evaluation has no backward pass"); }
  void weight(int, int) override { throw base::InternalError("evaluation has no weight gradients"); }

  const LossSums& sums() const { return sums_; }

 private:
  model::Transformer& model_;
  const MicrobatchProvider& microbatch_;
  LossSums sums_;
};

}  // namespace

LossSums forward_backward(model::Transformer& model, const config::RunConfig& config, const StepInput& input,
                          StepTimes* times) {
  TrainingStage stage(model, config, input, times);
  pipeline::run(pipeline::one_forward_one_backward(1, input.num_microbatches), 0, stage);
  return stage.sums();
}

LossSums evaluate_microbatches(model::Transformer& model, int num_microbatches, const MicrobatchProvider& microbatch) {
  const at::NoGradGuard no_grad;
  EvaluationStage stage(model, microbatch);
  pipeline::run(pipeline::forward_only(1, num_microbatches), 0, stage);
  return stage.sums();
}

}  // namespace pharos::train
