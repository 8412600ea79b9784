#include "pharos/train/trainer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "pharos/base/clock.h"
#include "pharos/base/file.h"
#include "pharos/base/text.h"
#include "pharos/config/derived.h"
#include "pharos/config/grammar/name_patterns.h"
#include "pharos/config/recipe/run_yaml.h"
#include "pharos/hf/weights.h"
#include "pharos/lens/context/propagation.h"
#include "pharos/lens/span.h"
#include "pharos/model/flops.h"
#include "pharos/model/stages.h"
#include "pharos/optim/names/name_rules.h"
#include "pharos/pipeline/run_schedule.h"
#include "pharos/train/agreement.h"

namespace pharos::train {
using lens::Group;

Trainer::Trainer(const config::ResolvedConfig& resolved, const RunFolder& folder, const TrainOptions& options,
                 const Parallel& parallel, comm::Watchdog* watchdog, Console& console, lens::StartupRecord& startup,
                 AttemptLog& attempts, std::string run_id)
    : resolved_(resolved),
      config_(resolved.config),
      folder_(folder),
      options_(options),
      console_(console),
      startup_(startup),
      attempts_(attempts),
      parallel_(parallel),
      watchdog_(watchdog),
      batches_(optim::batch_schedule_options(resolved.config, parallel.data.size())),
      train_iters_(config::total_train_iterations(resolved.config, parallel.data.size())),
      progress_(save_folder() / "progress.txt", resolved.config.logger.log_progress && parallel.is_first(),
                parallel.world.size()),
      run_id_(std::move(run_id)) {}

at::Device Trainer::device() const { return parallel_.world.device(); }

std::filesystem::path Trainer::save_folder() const {
  return config_.checkpoint.save ? std::filesystem::path(*config_.checkpoint.save) : folder_.checkpoints();
}

bool Trainer::saving_enabled() const { return config_.checkpoint.save_interval != 0; }

std::optional<ExitDecision> Trainer::set_up() {
  find_time_limit();
  writer_ = std::stoll(parallel_.world.announce("writer of checkpoints", std::to_string(::getpid())));
  startup_span_ = lens::open_startup_span(startup_, "ModelType.encoder_or_decoder",
                                          lens::read_launch_stamps(lens::ProcessEnvironment()));
  {
    PHAROS_SPAN(span, Group::kDataLoading, "megatron.startup.dataloader", {lens::kGoodput, true});
    open_data();
  }
  startup_.finish_phase("data");
  if (auto stop = decide_stop(config_.train, exit_inputs(0, false))) return stop;
  {
    PHAROS_SPAN(span, Group::kModelInit, "megatron.startup.model_init", {lens::kGoodput, true});
    build_model();
    if (auto stop = decide_stop(config_.train, exit_inputs(0, false))) return stop;
    load_checkpoint();
  }
  startup_.finish_phase("model");
  together(parallel_.world, "file of the pipeline", [this] {
    if (is_pipelined()) measured_ = std::make_unique<pipeline::MeasuredFile>(folder_.path(), parallel_.rank);
  });
  metrics_ = parallel_.is_first() ? std::make_unique<MetricsLog>(folder_.metrics(), state_.step)
                                  : std::make_unique<MetricsLog>();
  reporter_ = std::make_unique<Reporter>(config_, train_iters_, config::to_yaml(resolved_),
                                         Reporter::Place{parallel_.rank, parallel_.world.size()}, console_, *metrics_);
  network_ = std::make_unique<NetworkReport>(config_, parallel_.world.environment().local_rank, state_.step, console_,
                                             *metrics_);
  window_ = std::make_unique<profile::Window>(config_.profiling, parallel_.rank,
                                              [this](const std::string& line) { console_.line(line); });
  return std::nullopt;
}

void Trainer::find_time_limit() {
  std::string warning;
  together(parallel_.world, "time limit", [&] {
    if (parallel_.is_first()) time_limit_end_ = find_time_limit_end(lens::ProcessEnvironment(), warning);
  });
  if (!warning.empty()) console_.line("warning: " + warning);
  const std::string end =
      parallel_.world.announce("end of the time limit", time_limit_end_ ? fmt::format("{}", *time_limit_end_) : "");
  if (end.empty()) return;
  time_limit_end_ = std::stod(end);
  const auto left_ns = static_cast<std::int64_t>(*time_limit_end_ * 1e9) - base::wall_ns();
  console_.line(left_ns > 0 ? "time limit: the job ends in " + base::format_duration(left_ns)
                            : "time limit: the job should have ended already");
}

/// The first rank of each node builds missing indices, the others find them made.
void Trainer::open_data() {
  const auto open = [this] {
    data_ = std::make_unique<DataFeed>(config_, parallel_.data.rank(), parallel_.data.size());
  };
  constexpr std::int64_t kMany = 10'000'000;  // some ten seconds
  if (const auto samples = num_training_samples(config_, parallel_.data.size()); samples > kMany)
    console_.line(fmt::format("data: order of {} million samples is looked up or made; fewer with train.train_iters",
                              samples / 1'000'000));
  const bool is_first_of_node = parallel_.world.environment().local_rank == 0;
  together(parallel_.world, "data of first ranks", [&] {
    if (is_first_of_node) open();
  });
  together(parallel_.world, "data of other ranks", [&] {
    if (!is_first_of_node) open();
  });
}

std::optional<checkpoint::Found> Trainer::find_checkpoint(const std::string& purpose,
                                                          const std::filesystem::path& source,
                                                          std::optional<std::int64_t> step) {
  std::optional<checkpoint::Found> found;
  const std::string key = "checkpoint for " + purpose;
  together(parallel_.world, key + " (rank 0)", [&] {
    if (parallel_.is_first()) found = checkpoint::find_checkpoint(source, step);
  });
  const std::string folder = parallel_.world.announce(key, found ? found->folder.string() : "");
  if (parallel_.is_first()) return found;
  return folder.empty() ? std::nullopt : std::optional(checkpoint::Found{folder, {}});
}

void Trainer::build_model() {
  together(parallel_.world, "stages", [this] { declare_chunks(); });
  together(parallel_.world, "initial weights", [this] { initialize_weights(); });
  together(parallel_.world, "rules of names", [this] { apply_name_rules(); });
  optim::ModelChunks chunks;
  for (const auto& chunk : chunks_) chunks.push_back(chunk->parameters());
  const std::vector<int> ranks = pipeline::ranks_of_stages(config_.model);
  optimizer_ = std::make_unique<optim::DataParallel>(
      chunks,
      optim::parallel_groups(parallel_.world, parallel_.mesh, parameters_,
                             {.embedding = ranks.front(), .output = ranks.back()}),
      parallel_.mesh, parallel_.rank, optim::data_parallel_options(config_), optim::optimizer_options(config_));
  std::vector<std::string> warnings;
  schedule_ = std::make_unique<optim::LrSchedule>(optim::lr_schedule_options(config_, batches_, warnings));
  for (const auto& warning : warnings) console_.line("warning: " + warning);
  state_.seed = static_cast<std::uint64_t>(config_.rng.seed);
}

void Trainer::declare_chunks() {
  pipeline::check_microbatch_counts(config_, parallel_.data.size());
  const std::vector<model::Stage> stages = model::stages_of(config_.model);
  const std::vector<int> mine =
      pipeline::stages_of_ranks(config_.model).at(static_cast<std::size_t>(parallel_.pipeline.rank()));
  // In the order of the model: an output layer may share the embedding of an earlier stage, whichever chunk that is.
  std::vector<std::size_t> order(mine.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return mine[a] < mine[b]; });
  chunks_.resize(mine.size());
  tensor::Parameter* words = nullptr;
  for (const std::size_t chunk : order) {
    model::Stage stage = stages.at(static_cast<std::size_t>(mine[chunk]));
    if (!stage.embedding) stage.tied_words = words;
    chunks_[chunk] =
        std::make_unique<model::Transformer>(config_.model, stage, parallel_.mesh, parallel_.rank, parallel_.model);
    if (stage.embedding) words = chunks_[chunk]->parameters().front();
  }
  std::vector<model::Transformer*> passed;
  for (const auto& chunk : chunks_) {
    passed.push_back(chunk.get());
    const auto parameters = chunk->parameters();
    parameters_.insert(parameters_.end(), parameters.begin(), parameters.end());
  }
  routers_ = std::make_unique<RouterWatch>(config_, passed, parallel_.model.balance, parallel_.pipeline,
                                           parallel_.data.size(), device());
  passes_ = std::make_unique<ForwardBackward>(config_, std::move(passed), parallel_);
}

std::vector<tensor::Parameter*> Trainer::whole_model() {
  if (!is_pipelined()) return parameters_;
  if (declared_ == nullptr) {
    declared_ = std::make_unique<model::Transformer>(config_.model, model::whole_model(config_.model), parallel_.mesh,
                                                     parallel_.rank);
  }
  return declared_->parameters();
}

void Trainer::apply_name_rules() {
  const auto& optimizer = config_.optimizer;
  if (!optimizer.freeze && !optimizer.lr_scales) return;
  const std::vector<tensor::Parameter*> whole = whole_model();
  const std::set<std::string> pieces = checkpoint::piece_names(whole);
  if (optimizer.lr_scales) {
    const auto scales = config::parse_lr_scales(*optimizer.lr_scales);
    std::vector<std::string> patterns;
    for (const config::LrScale& scale : scales) patterns.push_back(scale.pattern);
    optim::check_patterns("optimizer.lr_scales", resolved_.describe("optimizer.lr_scales"), patterns, pieces);
    for (const tensor::Parameter* parameter : whole) optim::learning_rate_scale(*parameter, scales);
  }
  if (!optimizer.freeze) return;
  const std::string where = resolved_.describe("optimizer.freeze");
  optim::check_patterns("optimizer.freeze", where, *optimizer.freeze, pieces);
  optim::freeze(whole, *optimizer.freeze, where);
  optim::freeze(parameters_, *optimizer.freeze, where);
  double num_trained = 0, num_all = 0;
  for (const tensor::Parameter* parameter : whole) {
    num_all += static_cast<double>(tensor::num_elements(*parameter));
    if (parameter->trainable) num_trained += static_cast<double>(tensor::num_elements(*parameter));
  }
  if (num_trained == 0) {
    throw base::UserError({.what = "optimizer.freeze leaves nothing to train.",
                           .where = where,
                           .fix = "Use patterns that fit some of the weights only."});
  }
  console_.line(fmt::format("{} of {} parameters are trained, the others are frozen (optimizer.freeze)",
                            base::format_count(num_trained), base::format_count(num_all)));
}

void Trainer::initialize_weights() {
  const auto& pretrained = config_.checkpoint.pretrained_checkpoint;
  const bool from_hugging_face =
      pretrained && std::filesystem::exists(std::filesystem::path(*pretrained) / "config.json");
  if (!pretrained && !config_.model.hf_path) {
    for (const auto& chunk : chunks_) chunk->materialize(device(), static_cast<std::uint64_t>(config_.rng.seed));
    return;
  }
  if (!pretrained || from_hugging_face) {
    const std::string& folder = pretrained ? *pretrained : *config_.model.hf_path;
    hf::check_weights(parameters_, folder, parallel_.mesh, parallel_.rank);
    for (const auto& chunk : chunks_) chunk->allocate(device());
    hf::load_weights(parameters_, folder, parallel_.mesh, parallel_.rank);
    console_.line("initial weights from " + folder);
    return;
  }
  for (const auto& chunk : chunks_) chunk->allocate(device());
  const auto found = find_checkpoint("initial weights", *pretrained, std::nullopt);
  if (!found) {
    throw base::UserError({.what = "There is no checkpoint in '" + *pretrained + "'.",
                           .where = resolved_.describe("checkpoint.pretrained_checkpoint"),
                           .fix = "Give a folder of checkpoints, one checkpoint, or a Hugging Face folder."});
  }
  checkpoint::load(checkpoint::weights_of(parameters_), found->folder, load_options(), parallel_.mesh, parallel_.rank);
  console_.line("initial weights from " + found->folder.string());
}

checkpoint::LoadOptions Trainer::load_options() {
  checkpoint::LoadOptions options;
  if (is_pipelined()) options.model_pieces = checkpoint::piece_names(whole_model());
  return options;
}

checkpoint::Contents Trainer::contents() {
  checkpoint::Contents contents;
  const auto add = [&](std::size_t index, std::string_view kind, const at::Tensor& values, std::int64_t first_element,
                       bool is_fragment) {
    contents.push_back({.parameter = parameters_[index],
                        .kind = std::string(kind),
                        .values = values,
                        .first_element = first_element,
                        .is_fragment = is_fragment});
  };
  optimizer_->for_each_value([&](std::size_t index, const at::Tensor& values, std::int64_t first_element) {
    add(index, "", values, first_element, !optimizer_->holds_whole_values(index));
  });
  optimizer_->for_each_state(
      [&](std::size_t index, std::string_view kind, const at::Tensor& values, std::int64_t first_element) {
        add(index, kind, values, first_element, !optimizer_->holds_whole_states());
      });
  return contents;
}

void Trainer::check_never_saved(const std::filesystem::path& source) const {
  if (!std::filesystem::exists(folder_.metrics())) return;
  if (base::read_regular_file(folder_.metrics()).find("\"checkpoint_bytes\"") == std::string::npos) return;
  throw base::UserError(
      {.what = "The run in '" + folder_.path().string() + "' has saved checkpoints, but there is none in '" +
               source.string() + "'.",
       .where = resolved_.describe("checkpoint.save"),
       .why = "Starting again at step 0 would throw its progress away.",
       .fix = "Point checkpoint.save to the folder of its checkpoints, or start a new run in another --run-dir."});
}

void Trainer::load_checkpoint() {
  const auto& settings = config_.checkpoint;
  std::filesystem::path source = options_.resume ? save_folder() : std::filesystem::path(settings.load.value_or(""));
  if (source.empty()) return;
  PHAROS_SPAN(span, Group::kLoadCheckpoint, "megatron.checkpoint.load", {lens::kGoodput, true});
  auto found = find_checkpoint("resuming", source, settings.ckpt_step);
  const bool continues = options_.resume && found;
  if (continues && settings.load) {
    console_.line("note: checkpoint.load has no effect with --resume; the run continues from its own checkpoints");
  }
  if (!found && options_.resume) {
    check_never_saved(source);
    const std::string begins = settings.load ? "begins again from checkpoint.load" : "starts at step 0";
    console_.line("no checkpoint to resume from in " + source.string() + "; the run " + begins);
    if (!settings.load) return;
    source = *settings.load;
    found = find_checkpoint("beginning again", source, settings.ckpt_step);
  }
  if (!found) {
    throw base::UserError({.what = "There is no checkpoint in '" + source.string() + "'.",
                           .where = resolved_.describe("checkpoint.load"),
                           .fix = "Correct checkpoint.load or leave it out to start from scratch."});
  }
  for (const auto& warning : found->warnings) console_.line("warning: " + warning);
  checkpoint::Contents wanted = contents();
  checkpoint::LoadOptions load = load_options();
  // Of the whole model: a rank all of whose weights are frozen asks for no state, and counts the updates all the same.
  const bool with_state = !settings.finetune && settings.load_optim;
  if (!with_state) checkpoint::drop_state(wanted);
  if (with_state) {
    std::vector<tensor::Parameter*> trained = whole_model();
    std::erase_if(trained, [](const tensor::Parameter* parameter) { return !parameter->trainable; });
    load.trained_pieces = checkpoint::piece_names(trained);
  }
  checkpoint::LoadResult result;
  together(parallel_.world, "loading",
           [&] { result = checkpoint::load(wanted, found->folder, load, parallel_.mesh, parallel_.rank); });
  for (const auto& warning : result.warnings) console_.line("warning: " + warning);
  loaded_from_ = found->folder;
  if (settings.finetune) {
    console_.line(
        fmt::format("loaded weights from {}; counters start at 0 (checkpoint.finetune)", found->folder.string()));
  } else {
    state_ = result.train_state;
    schedule_->restore(state_.scheduler, optim::stored_schedule_policy(config_.scheduler));
    if (with_state) optimizer_->restore_scalars(state_.optimizer, result.newly_trained);
    last_saved_step_ = continues ? state_.step : -1;
    console_.line(fmt::format("resumed from {} at step {}", found->folder.string(), state_.step));
  }
  // Main parameters that were not loaded follow the weights; those that were decide about the weights.
  if (!with_state) {
    optimizer_->copy_data_to_main();
  } else {
    optimizer_->copy_main_to_data();
  }
}

bool Trainer::is_skipped_by_request(std::int64_t iteration) const {
  const auto& skipped = config_.train.iterations_to_skip;
  return std::find(skipped.begin(), skipped.end(), iteration) != skipped.end();
}

void Trainer::skip_iteration() {
  const std::int64_t batch = batches_.at(state_.consumed_train_samples).running_global_batch_size;
  state_.step += 1;
  state_.consumed_train_samples += batch;
  state_.skipped_train_samples += batch;
  console_.line(fmt::format("iteration {} is skipped (train.iterations_to_skip)", state_.step));
}

StepRecord Trainer::run_iteration() {
  StepRecord record;
  const std::int64_t start = base::monotonic_ns();
  const optim::BatchSize batch = batches_.at(state_.consumed_train_samples);
  record.global_batch_size = batch.running_global_batch_size;
  record.num_microbatches = static_cast<int>(batch.num_microbatches);
  PHAROS_SPAN(span, Group::kStep, "megatron.train.iteration", {lens::kGoodput, true},
              {"megatron.iteration", state_.step});
  record.loss_scale = optimizer_->loss_scale();
  StepTimes times;
  LossSums sums;
  {
    PHAROS_SPAN(forward_backward_span, Group::kForwardBackward, "megatron.train.iteration.forward_backward",
                {"num_microbatches", std::int64_t{record.num_microbatches}});
    // The context that all ranks of the pipeline agree on without talking: what joins their traces.
    if (is_pipelined()) forward_backward_span.add_link(lens::derive_trace_context(run_id_, state_.step));
    optimizer_->begin_step(record.num_microbatches);
    StepInput input{.step = state_.step,
                    .num_microbatches = record.num_microbatches,
                    .loss_scale = record.loss_scale,
                    .microbatch =
                        [&](int index) {
                          return data_->microbatch(DataSplit::kTrain, state_.consumed_train_samples, index, device());
                        },
                    .begin_pass = [&](std::size_t chunk) { optimizer_->begin_pass(chunk); }};
    sums = passes_->train(input, times);
    optimizer_->finish_gradients();
    sums = reduce(sums);
    if (config_.model.calculate_per_token_loss) optimizer_->scale_gradients(1 / std::max(1.0, sums.tokens));
    record.routing = routers_->finish_step();
  }
  record.loss = sums.mean();
  record.auxiliary_losses = record.routing.losses;
  for (std::size_t depth = 0; depth < sums.predictions.size(); ++depth)
    record.auxiliary_losses.emplace_back(fmt::format("mtp_{} loss", depth + 1), sums.predictions[depth].mean());
  record.data_wait_ns = times.data_wait_ns;
  keep_measured(std::move(times.pipeline));
  const std::int64_t optimizer_start = base::monotonic_ns();
  record.forward_backward_ns = optimizer_start - start;
  check_loss(record.loss, state_.step + 1);
  record.learning_rate = schedule_->learning_rate();
  record.weight_decay = schedule_->weight_decay();
  optim::StepResult result;
  {
    PHAROS_SPAN(optimizer_span, Group::kOptimizer, "megatron.train.iteration.optimizer");
    result = optimizer_->step(record.learning_rate, record.weight_decay);
    if (optimizer_span) optimizer_span.set("megatron.update_successful", result.update_successful);
  }
  record.skipped = !result.update_successful;
  if (record.skipped) check_gradients(result.grad_norm, state_.step + 1);
  record.grad_norm = result.grad_norm;
  if (config_.logger.log_num_zeros_in_grad) record.num_zeros = result.num_zeros;
  if (!record.skipped) schedule_->advance(record.global_batch_size);
  record.next_learning_rate = schedule_->learning_rate();
  if (span) span.set("megatron.skipped", record.skipped);
  const auto finish = base::monotonic_ns();
  record.optimizer_ns = finish - optimizer_start;
  record.step_time_ns = finish - start;
  return record;
}

bool Trainer::has_dynamic_loss_scale() const {
  return config::compute_dtype(config_.model) == config::DType::kFloat16 && !config_.optimizer.loss_scale;
}

void Trainer::fail_iteration(const std::string& what, std::int64_t step) const {
  const std::string saved =
      last_saved_step_ >= 0 ? fmt::format("; the checkpoint of step {} is intact", last_saved_step_) : "";
  throw base::TrainingError(fmt::format(
      "{} (iteration {}, rank {}, device {}, learning rate {:.3E}){}.\n"
      "  fix: look at the gradient norms before it in metrics.jsonl; lower optimizer.lr, pass this batch with "
      "train.iterations_to_skip=[{}], or skip such steps with rerun_state_machine.check_for_nan_in_loss=false.",
      what, step, parallel_.rank, device().str(), schedule_->learning_rate(), saved, step));
}

void Trainer::check_gradients(double grad_norm, std::int64_t step) {
  // With a dynamic loss scale an overflow is the scaler's business: it lowers the scale.
  const bool guarded = config_.rerun_state_machine.check_for_nan_in_loss || config_.ddp.check_for_nan_in_grad;
  if (std::isfinite(grad_norm) || has_dynamic_loss_scale() || !guarded) return;
  auto names = optimizer_->non_finite_parameters();
  const std::size_t count = names.size();
  if (count == 0) fail_iteration("The gradient of another rank is not finite", step);
  names.resize(std::min<std::size_t>(count, 5));
  fail_iteration(fmt::format("The gradient of {} parameter{} is not finite: {}{}", count, count == 1 ? "" : "s",
                             base::join(names, ", "), count > names.size() ? ", …" : ""),
                 step);
}

void Trainer::check_loss(double loss, std::int64_t step) {
  const auto& guard = config_.rerun_state_machine;
  if (guard.check_for_nan_in_loss && !has_dynamic_loss_scale() && !std::isfinite(loss)) {
    fail_iteration(fmt::format("The loss is {}", loss), step);
  }
  if (guard.check_for_spiky_loss && largest_loss_ > 0 && std::abs(loss) >= guard.spiky_loss_factor * largest_loss_) {
    console_.line(fmt::format("warning: the loss {:.4f} of iteration {} is {:.1f} times the largest of the first 100",
                              loss, step, std::abs(loss) / largest_loss_));
  }
  if (step <= 100 && std::isfinite(loss)) largest_loss_ = std::max(largest_loss_, std::abs(loss));
}

}  // namespace pharos::train
