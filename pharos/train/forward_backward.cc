#include "pharos/train/forward_backward.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#ifdef PHAROS_BROKEN_STAGE
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#endif

#include <algorithm>
#include <optional>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/lens/span.h"
#include "pharos/model/stages.h"
#include "pharos/nn/linear.h"
#include "pharos/pipeline/run_schedule.h"
#include "pharos/tensor/host_allocator.h"
#include "pharos/train/data/context_slice.h"
#include "pharos/train/data/prediction.h"

namespace pharos::train {
namespace {

using pipeline::Tensors;
using pipeline::TensorSpec;

struct MicrobatchLoss {
  at::Tensor sum;       ///< scalar, part of the autograd graph while training
  at::Tensor tokens;    ///< scalar
  at::Tensor of_whole;  ///< the same, over all context-parallel ranks
};

MicrobatchLoss masked_loss(const at::Tensor& losses, const at::Tensor& mask, const at::Tensor& num_loss_tokens) {
  return {(losses * mask).sum(), mask.sum(), num_loss_tokens};
}

void add_to(LossSums& sums, const MicrobatchLoss& loss) {
  sums.loss += loss.sum.item<double>();
  sums.tokens += loss.tokens.item<double>();
}

#ifdef PHAROS_BROKEN_STAGE
/// A program of the tests fails in mid-pipeline: PHAROS_BREAK = throw|stop|kill,FIRST_LAYER,MICROBATCH,STEP.
void break_down(std::int64_t first_layer, int microbatch, std::int64_t step) {
  const char* text = std::getenv("PHAROS_BREAK");
  if (text == nullptr) return;
  char kind[8];
  long long layer = 0, at_microbatch = 0, at_step = 0;
  if (std::sscanf(text, "%7[^,],%lld,%lld,%lld", kind, &layer, &at_microbatch, &at_step) != 4) std::abort();
  if (first_layer != layer || microbatch != at_microbatch || step != at_step) return;
  if (std::string_view(kind) == "throw") throw std::runtime_error("made to fail");
  ::raise(std::string_view(kind) == "stop" ? SIGSTOP : SIGKILL);
}
#endif

/// What training and evaluation have in common: chunks, and the hidden states between them.
class Chunks : public pipeline::StageRunner {
 public:
  Chunks(const std::vector<model::Transformer*>& chunks, const config::RunConfig& config, std::int64_t rows,
         const MicrobatchProvider& microbatch, const Parallel& parallel)
      : chunks_(chunks), config_(config), parallel_(parallel), microbatch_(microbatch) {
    const config::ModelConfig& model = config.model;
    std::int64_t tokens = model.seq_length / model.context_parallel_size;
    if (model.sequence_parallel) tokens /= model.tensor_model_parallel_size;
    boundary_ = {{rows, tokens, *model.hidden_size}, model::boundary_type(model)};
  }

  std::vector<TensorSpec> boundary(int /*microbatch*/, int /*stage*/) override { return {boundary_}; }

  const LossSums& sums() const { return sums_; }

 protected:
  /// Of all context-parallel ranks.
  Microbatch read_whole(int microbatch) const { return microbatch_(microbatch); }
  Microbatch own_part(const Microbatch& whole) const {
    return slice_context(whole, parallel_.context.rank(), parallel_.context.size());
  }

  static nn::ForwardContext context_of(const Microbatch& batch) {
    nn::ForwardContext context;
    context.positions = batch.positions;
    context.segments = batch.segments;
    context.first_sample = batch.first_sample;
    return context;
  }

  const model::Transformer& chunk(int index) const { return *chunks_[static_cast<std::size_t>(index)]; }
  at::ScalarType boundary_type() const { return boundary_.type; }

  const std::vector<model::Transformer*>& chunks_;
  const config::RunConfig& config_;
  const Parallel& parallel_;
  LossSums sums_;

 private:
  const MicrobatchProvider& microbatch_;
  TensorSpec boundary_;
};

class TrainingChunks : public Chunks {
 public:
  /// splits_backward: the schedule runs weight gradients on their own.
  TrainingChunks(const std::vector<model::Transformer*>& chunks, const config::RunConfig& config,
                 const StepInput& input, bool splits_backward, const Parallel& parallel)
      : Chunks(chunks, config, *config.train.micro_batch_size, input.microbatch, parallel),
        input_(input),
        splits_backward_(splits_backward),
        device_(parallel.world.device()),
        bytes_before_(tensor::allocated_bytes(device_)) {}

  Tensors forward(int microbatch, int index, Tensors inputs) override {
#ifdef PHAROS_BROKEN_STAGE
    break_down(chunk(index).stage().first_layer, microbatch, input_.step + 1);
#endif
    const Microbatch whole = wait_for(microbatch), batch = own_part(whole);
    const nn::ForwardContext context = training_context(batch);
    InFlight& pass = in_flight_[{microbatch, index}];
    std::optional<nn::WeightGradientQueue::Scope> scope;
    if (splits_backward_) scope.emplace(*(pass.weight_gradients = std::make_unique<nn::WeightGradientQueue>()));
    if (!inputs.empty()) pass.input = inputs.front().requires_grad_();
    const at::Tensor hidden = chunk(index).hidden_states(inputs.empty() ? batch.tokens : pass.input, context);
    Tensors outputs;
    if (chunk(index).stage().output) {
      pass.loss = masked_loss(chunk(index).token_losses(hidden, batch.labels), batch.loss_mask, batch.num_loss_tokens);
      pass.predictions = predict(chunk(index), hidden, whole, context);
      pass.root = torch::autograd::impl::gradient_edge(objective(pass));
      for (MicrobatchLoss* loss : pass.losses()) loss->sum = loss->sum.detach();
    } else {
      // The backward pass needs the way back alone: the values go once they have been sent.
      const at::Tensor output = hidden.to(boundary_type());
      pass.root = torch::autograd::impl::gradient_edge(output);
      outputs = {output.detach().contiguous()};
    }
    note_memory();
    return outputs;
  }

  Tensors backward(int microbatch, int index, Tensors output_grads) override {
    InFlight& pass = in_flight_.at({microbatch, index});
    if (!splits_backward_) input_.begin_pass(static_cast<std::size_t>(index));
    if (pass.loss.sum.defined()) output_grads = {loss_gradient(pass)};
    torch::autograd::Engine::get_default_engine().execute({std::exchange(pass.root, {})}, std::move(output_grads),
                                                          /*keep_graph=*/false, /*create_graph=*/false,
                                                          /*accumulate_grad=*/true);
    Tensors input_grads;
    if (pass.input.defined()) input_grads = {pass.input.grad().contiguous()};
    pass.input.reset();
    if (!splits_backward_) in_flight_.erase({microbatch, index});
    note_memory();
    return input_grads;
  }

  void weight(int microbatch, int index) override {
    input_.begin_pass(static_cast<std::size_t>(index));
    in_flight_.extract({microbatch, index}).mapped().weight_gradients->run_all();
  }

  std::int64_t peak_activation_bytes() const { return peak_bytes_; }
  std::int64_t data_wait_ns() const { return data_wait_ns_; }

 private:
  struct InFlight {
    at::Tensor input;  ///< hidden states of the stage before; undefined on the first
    torch::autograd::Edge root;
    MicrobatchLoss loss;
    std::vector<MicrobatchLoss> predictions;  ///< by depth
    std::unique_ptr<nn::WeightGradientQueue> weight_gradients;
    std::vector<MicrobatchLoss*> losses() {
      std::vector<MicrobatchLoss*> all{&loss};
      for (MicrobatchLoss& prediction : predictions) all.push_back(&prediction);
      return all;
    }
  };

  nn::ForwardContext training_context(const Microbatch& batch) const {
    nn::ForwardContext context = context_of(batch);
    context.training = true;
    context.seed = static_cast<std::uint64_t>(config_.rng.seed);
    context.step = input_.step;
    context.auxiliary_loss_scale = input_.loss_scale;
    if (!config_.model.calculate_per_token_loss)  // as in loss_gradient(), of a loss that is a mean already
      context.auxiliary_loss_scale *= static_cast<double>(parallel_.context.size()) / input_.num_microbatches;
    return context;
  }

  std::vector<MicrobatchLoss> predict(const model::Transformer& chunk, const at::Tensor& hidden,
                                      const Microbatch& whole, const nn::ForwardContext& context) const {
    std::vector<model::PredictionInput> inputs;
    const std::vector<Prediction> predictions =
        predictions_of(whole, chunk.num_prediction_layers(), parallel_.context.rank(), parallel_.context.size());
    for (const Prediction& prediction : predictions) inputs.push_back(prediction.input);
    const std::vector<at::Tensor> losses = chunk.prediction_losses(hidden, inputs, context);
    std::vector<MicrobatchLoss> result;
    for (std::size_t i = 0; i < losses.size(); ++i)
      result.push_back(masked_loss(losses[i], predictions[i].loss_mask, predictions[i].num_loss_tokens));
    return result;
  }

  /// What loss_gradient() is the gradient of: L + factor / depths · Σ_k w_k P_k, with the sums over tokens L of the
  /// loss and P_k of depth k. w_k is 1 with the loss per token, else such that P_k's mean counts as that of L does.
  at::Tensor objective(const InFlight& pass) const {
    at::Tensor total = pass.loss.sum;
    const double weight =
        config_.model.mtp_loss_scaling_factor / std::max<double>(1, static_cast<double>(pass.predictions.size()));
    for (const MicrobatchLoss& prediction : pass.predictions) {
      at::Tensor share = prediction.sum * weight;
      if (!config_.model.calculate_per_token_loss)
        share = share * (pass.loss.of_whole.clamp_min(1) / prediction.of_whole.clamp_min(1));
      total = total + share;
    }
    return total;
  }

  Microbatch wait_for(int microbatch) {
    PHAROS_SPAN(span, lens::Group::kDataLoading, "megatron.dataloader.wait");
    const std::int64_t start = base::monotonic_ns();
    Microbatch batch = read_whole(microbatch);
    data_wait_ns_ += base::monotonic_ns() - start;
    return batch;
  }

  /// d(scaled loss of the step) / d(objective of this microbatch); counts the microbatch.
  at::Tensor loss_gradient(const InFlight& pass) {
    const MicrobatchLoss& loss = pass.loss;
    double scale = input_.loss_scale;
    if (!config_.model.calculate_per_token_loss) {
      scale *= static_cast<double>(parallel_.context.size());  // see slice_context()
      scale /= std::max(1.0, loss.of_whole.item<double>()) * input_.num_microbatches;
    }
    add_to(sums_, loss);
    sums_.predictions.resize(pass.predictions.size());
    for (std::size_t i = 0; i < pass.predictions.size(); ++i) add_to(sums_.predictions[i], pass.predictions[i]);
    return at::full_like(loss.sum, scale);
  }

  void note_memory() { peak_bytes_ = std::max(peak_bytes_, tensor::allocated_bytes(device_) - bytes_before_); }

  const StepInput& input_;
  bool splits_backward_;
  at::Device device_;
  std::int64_t bytes_before_;
  std::int64_t peak_bytes_ = 0;
  std::int64_t data_wait_ns_ = 0;
  std::map<std::pair<int, int>, InFlight> in_flight_;  ///< by microbatch and chunk
};

class EvaluationChunks : public Chunks {
 public:
  EvaluationChunks(const std::vector<model::Transformer*>& chunks, const config::RunConfig& config,
                   const MicrobatchProvider& microbatch, const Parallel& parallel)
      : Chunks(chunks, config, config::eval_micro_batch_size_or_default(config), microbatch, parallel) {}

  Tensors forward(int microbatch, int index, Tensors inputs) override {
    const Microbatch batch = own_part(read_whole(microbatch));
    const at::Tensor hidden =
        chunk(index).hidden_states(inputs.empty() ? batch.tokens : inputs.front(), context_of(batch));
    if (!chunk(index).stage().output) return {hidden.to(boundary_type()).contiguous()};
    add_to(sums_, masked_loss(chunk(index).token_losses(hidden, batch.labels), batch.loss_mask, batch.num_loss_tokens));
    return {};
  }
  Tensors backward(int, int, Tensors) override { throw base::InternalError("evaluation has no backward pass"); }
  void weight(int, int) override { throw base::InternalError("evaluation has no weight gradients"); }
};

}  // namespace

ForwardBackward::ForwardBackward(const config::RunConfig& config, std::vector<model::Transformer*> chunks,
                                 const Parallel& parallel)
    : config_(config), chunks_(std::move(chunks)), parallel_(parallel) {}

pipeline::Executor& ForwardBackward::executor(int num_microbatches, bool trains) {
  auto& executor = executors_[{num_microbatches, trains}];
  if (executor == nullptr) {
    pipeline::Schedule schedule = trains ? pipeline::schedule_of(config_.model, num_microbatches)
                                         : pipeline::forward_schedule(config_.model, num_microbatches);
    executor = std::make_unique<pipeline::Executor>(std::move(schedule), static_cast<int>(parallel_.pipeline.rank()),
                                                    parallel_.channels(), parallel_.world.device());
  }
  return *executor;
}

LossSums ForwardBackward::train(const StepInput& input, StepTimes& times) {
  pipeline::Executor& passes = executor(input.num_microbatches, true);
  const bool splits_backward = pipeline::last_phase(passes.schedule()) == pipeline::Phase::kWeight;
  TrainingChunks chunks(chunks_, config_, input, splits_backward, parallel_);
  times.pipeline = passes.run(chunks, input.step + 1);
  times.pipeline.peak_activation_bytes = chunks.peak_activation_bytes();
  times.data_wait_ns = chunks.data_wait_ns();
  return chunks.sums();
}

LossSums ForwardBackward::evaluate(int num_microbatches, const MicrobatchProvider& microbatch) {
  const at::NoGradGuard no_grad;
  EvaluationChunks chunks(chunks_, config_, microbatch, parallel_);
  executor(num_microbatches, false).run(chunks, 0);
  return chunks.sums();
}

}  // namespace pharos::train
