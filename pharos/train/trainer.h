// The state of a run between steps, and the loop over them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "pharos/base/error.h"
#include "pharos/checkpoint/checkpoint.h"
#include "pharos/comm/watchdog.h"
#include "pharos/config/resolve.h"
#include "pharos/lens/life/startup.h"
#include "pharos/model/transformer.h"
#include "pharos/optim/parallel/data_parallel.h"
#include "pharos/optim/schedule/batch_schedule.h"
#include "pharos/optim/schedule/lr_schedule.h"
#include "pharos/pipeline/report/measured_file.h"
#include "pharos/profile/window/window.h"
#include "pharos/train/attempts/attempt_log.h"
#include "pharos/train/data/data_feed.h"
#include "pharos/train/exit_policy.h"
#include "pharos/train/experts/router_watch.h"
#include "pharos/train/forward_backward.h"
#include "pharos/train/parallel.h"
#include "pharos/train/report/network_report.h"
#include "pharos/train/report/progress_file.h"
#include "pharos/train/report/report.h"
#include "pharos/train/run_folder.h"
#include "pharos/train/time_limit.h"
#include "pharos/train/train.h"

namespace pharos::train {

class Trainer {
 public:
  /// Every argument outlives the trainer. Every rank makes one and calls the same functions in the same order.
  /// `watchdog`: null on one rank. `run_id`: the same on all ranks.
  Trainer(const config::ResolvedConfig& resolved, const RunFolder& folder, const TrainOptions& options,
          const Parallel& parallel, comm::Watchdog* watchdog, Console& console, lens::StartupRecord& startup,
          AttemptLog& attempts, std::string run_id);

  /// Data, model, optimizer, checkpoint: everything before the first step. A fault of one rank is one of all. Where a
  /// signal came or the time limit is near, the reason to stop; the rest is then left undone and run() not allowed.
  std::optional<ExitDecision> set_up();
  /// Steps until the last one or an exit condition, then the final evaluation on validation and test data.
  base::ExitCode run();

 private:
  void open_data();
  void build_model();
  /// The model chunks of this pipeline rank, by schedule and layout, without values.
  void declare_chunks();
  void initialize_weights();
  /// optimizer.freeze and optimizer.lr_scales, judged over the whole model.
  void apply_name_rules();
  /// Every parameter of the whole model, in no particular order, declared at most: those of this rank where it has all.
  std::vector<tensor::Parameter*> whole_model();
  void load_checkpoint();
  /// UserError when a resumed run has no checkpoint although it saved some.
  void check_never_saved(const std::filesystem::path& source) const;
  StepRecord run_iteration();
  void skip_iteration();
  /// Megatron's guard on the loss (rerun_state_machine): throws TrainingError for NaN and infinity.
  void check_loss(double loss, std::int64_t step);
  /// The same for a gradient that is not finite, where no loss scaler deals with it.
  void check_gradients(double grad_norm, std::int64_t step);
  [[noreturn]] void fail_iteration(const std::string& what, std::int64_t step) const;
  bool has_dynamic_loss_scale() const;
  void after_iteration(const StepRecord& record);
  void first_step_done(std::int64_t duration_ns);
  /// The sums over all data-parallel ranks.
  LossSums reduce(const LossSums& sums);
  /// Signals and times of all ranks, so that all decide alike. `next_s`: what would be begun now, as rank 0 expects it;
  /// `save_follows`: a save must have time after it.
  ExitInputs exit_inputs(double next_s, bool save_follows);
  bool owes_save() const { return last_saved_step_ != state_.step; }
  void find_time_limit();
  /// What this rank would save.
  std::int64_t checkpoint_bytes();
  /// The checkpoint to load from `source` as rank 0 sees it; nullopt when there is none. Once for each purpose.
  std::optional<checkpoint::Found> find_checkpoint(const std::string& purpose, const std::filesystem::path& source,
                                                   std::optional<std::int64_t> step);
  /// Mean loss over `eval_iters` global batches of a split; nullopt when it had to stop in between.
  std::optional<double> evaluate(DataSplit split);
  /// False, and said so, when the evaluation would not end before the run must save.
  bool has_time_to_evaluate(DataSplit split, const std::string& place);
  void evaluate_and_report(DataSplit split, const std::string& place);
  void evaluate_at_end();
  void start_checkpoint_section();
  void save();
  /// Returns the bytes written.
  std::int64_t write_checkpoint();
  bool saving_enabled() const;
  bool is_skipped_by_request(std::int64_t iteration) const;
  base::ExitCode leave(const ExitDecision& decision);
  bool is_pipelined() const { return parallel_.pipeline.size() > 1; }
  /// Keeps what the pipeline measured in the step at hand, if it is one that is logged or the last.
  void keep_measured(pipeline::MeasuredStep measured);
  /// After the last step: the bubble explained, in the run folder and the log.
  void report_pipeline();
  checkpoint::Contents contents();
  checkpoint::LoadOptions load_options();
  at::Device device() const;
  std::filesystem::path save_folder() const;

  const config::ResolvedConfig& resolved_;
  const config::RunConfig& config_;
  const RunFolder& folder_;
  const TrainOptions& options_;
  Console& console_;
  lens::StartupRecord& startup_;
  AttemptLog& attempts_;
  const Parallel& parallel_;
  comm::Watchdog* watchdog_;
  optim::BatchSchedule batches_;
  std::int64_t train_iters_ = 0;
  std::optional<double> time_limit_end_;  ///< seconds since 1970, the same on all ranks
  Durations durations_;

  std::unique_ptr<DataFeed> data_;
  std::vector<std::unique_ptr<model::Transformer>> chunks_;  ///< of the model, that this pipeline rank holds
  std::vector<tensor::Parameter*> parameters_;               ///< of all chunks, in forward order
  std::unique_ptr<model::Transformer> declared_;             ///< all stages, without values; null before it is needed
  std::unique_ptr<ForwardBackward> passes_;
  std::unique_ptr<RouterWatch> routers_;
  std::unique_ptr<optim::DataParallel> optimizer_;
  std::unique_ptr<optim::LrSchedule> schedule_;
  std::unique_ptr<pipeline::MeasuredFile> measured_;  ///< null without a pipeline
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<NetworkReport> network_;
  std::unique_ptr<profile::Window> window_;  ///< of a profiler
  ProgressFile progress_;
  double job_flops_ = 0;
  std::int64_t loop_start_ns_ = 0;
  checkpoint::TrainState state_;
  std::string run_id_;
  lens::ManagedSpan startup_span_;
  std::optional<std::filesystem::path> loaded_from_;
  std::int64_t last_saved_step_ = -1;
  std::int64_t writer_ = 0;  ///< process id of rank 0
  int num_saves_ = 0;
  double largest_loss_ = 0;
  bool first_step_pending_ = true;
  bool has_lost_times_ = false;  ///< of the pipeline
};

}  // namespace pharos::train
