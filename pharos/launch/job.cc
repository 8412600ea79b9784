#include "pharos/launch/job.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ostream>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/comm/rank_environment.h"
#include "pharos/launch/rank_logs.h"
#include "pharos/launch/report.h"

namespace pharos::launch {
namespace {

class LocalJob {
 public:
  LocalJob(const JobOptions& options, std::ostream& report)
      : options_(options), report_(report), inherited_(own_variables()), logs_(options.run_folder, options.num_ranks) {}

  int run() {
    for (std::int64_t attempt = 1;; ++attempt) {
      const int code = run_attempt(attempt);
      const bool is_refused =
          record_.ends[0].signal == 0 && record_.ends[0].code == static_cast<int>(base::ExitCode::kUserError);
      if (is_refused && !logs_.has_run_begun()) logs_.withdraw();
      if (!is_worth_another(attempt, code)) return code;
      if (!wait_for_next()) return code;
    }
  }

 private:
  int run_attempt(std::int64_t number) {
    attempt_.emplace(signals_, options_.patience, [this](const std::vector<RankEnd>& ranks) {
      record_.early_verdict = judge_now(options_.run_folder, ranks);
    });
    record_ = {.run_folder = options_.run_folder, .start_time = std::filesystem::file_time_type::clock::now()};
    try {
      start_ranks(number);
    } catch (const base::UserError&) {
      attempt_->kill_all();
      attempt_->run();
      if (!logs_.has_run_begun()) logs_.withdraw();
      throw;
    }
    record_.ends = attempt_->run();
    const std::string text = describe_attempt(record_);
    if (!text.empty() && isatty(STDERR_FILENO) != 0) report_ << "\n";  // rank 0 may have left a line of progress
    report_ << text << std::flush;
    return exit_code_of(record_.ends);
  }

  void start_ranks(std::int64_t number) {
    // Only rank 0 may hold it afterwards: where that dies, its peers are to be refused and not to wait in the queue.
    const ListenSocket socket(options_.port);
    logs_.begin_attempt(number);
    const std::vector<std::string> arguments = arguments_of_rank();
    for (std::int64_t rank = 0; rank < options_.num_ranks; ++rank) {
      record_.logs.push_back(logs_.part(rank));
      const RankPlace place = {.rank = rank,
                               .num_ranks = options_.num_ranks,
                               .port = socket.port(),
                               .listen_descriptor = socket.descriptor()};
      attempt_->start(rank, {.program = options_.program,
                             .arguments = arguments,
                             .variables = rank_variables(inherited_, place),
                             .output_descriptor = logs_.descriptor(rank),
                             .inherit_descriptor = rank == 0 ? socket.descriptor() : -1,
                             .signal_mask = signals_.mask_before()});
    }
  }

  std::vector<std::string> arguments_of_rank() const {
    std::vector<std::string> added = {"--run-dir", options_.run_folder.string()};
    const bool resumes = attempts_made_ > 0 && !options_.is_resumed;
    if (resumes && std::filesystem::exists(options_.run_folder / "run.yaml")) added.emplace_back("--resume");
    std::vector<std::string> arguments = options_.arguments;
    arguments.insert(arguments.begin() + (arguments.empty() ? 0 : 1), added.begin(), added.end());
    arguments.insert(arguments.begin(), options_.program.string());
    return arguments;
  }

  /// Whether to try again, and a line that says why or why not.
  bool is_worth_another(std::int64_t attempt, int code) {
    attempts_made_ = attempt;
    const bool can_pass = code == static_cast<int>(base::ExitCode::kTrainingFailure) ||
                          code == static_cast<int>(base::ExitCode::kRerunRestart);
    if (!can_pass || options_.max_restarts == 0 || attempt_->was_asked_to_end()) return false;
    const RankEnd& first = record_.ends[failures_in_order(record_.ends)[0]];
    if (first.was_passed_on || (first.signal == 0 && first.code == 127)) return false;
    const std::int64_t step = last_step(record_);
    const bool is_stuck = attempt > 1 && step == last_step_;
    last_step_ = step;
    if (is_stuck) {
      report_ << "launcher: no further attempt: two in a row ended at step " << step << "." << std::endl;
      return false;
    }
    if (attempt > options_.max_restarts) {
      report_ << "launcher: no further attempt: --max-restarts " << options_.max_restarts << " is used up."
              << std::endl;
      return false;
    }
    const bool has_run = std::filesystem::exists(options_.run_folder / "run.yaml");
    report_ << "launcher: attempt " << attempt << " ended at step " << step << " because " << summarize_attempt(record_)
            << "; attempt " << attempt + 1 << " of at most " << options_.max_restarts + 1
            << (has_run ? " continues from the last checkpoint." : " starts from the beginning.") << std::endl;
    return true;
  }

  /// False when a signal asked the job to end meanwhile.
  bool wait_for_next() {
    const std::int64_t until = base::monotonic_ns() + std::chrono::nanoseconds(options_.restart_delay).count();
    while (const std::optional<int> signal = signals_.wait_until(until)) {
      if (asks_to_end(*signal)) return false;
    }
    return true;
  }

  const JobOptions& options_;
  std::ostream& report_;
  const std::vector<std::string> inherited_;
  RankLogs logs_;
  SignalQueue signals_;
  std::optional<Attempt> attempt_;
  AttemptRecord record_;
  std::int64_t attempts_made_ = 0;
  std::int64_t last_step_ = 0;
};

}  // namespace

int run_local_job(const JobOptions& options, std::ostream& report) {
  PHAROS_CHECK(options.num_ranks >= 1, "a job has at least one rank");
  return LocalJob(options, report).run();
}

std::uint16_t find_job_port(const lens::Environment& environment) {
  const comm::RankEnvironment own = comm::read_rank_environment(environment);
  if (environment.get_nonblank("RANK") || own.world_size > 1) {
    throw base::UserError({.what = "--nproc was given to a process that is itself a rank of a job.",
                           .where = "environment variables " + own.source,
                           .why = "--nproc starts all ranks of this machine; so has torchrun or srun done already.",
                           .fix = "Leave out --nproc under torchrun and srun, or unset these variables."});
  }
  const std::optional<std::string> text = environment.get_nonblank("MASTER_PORT");
  if (!text) return 0;
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), port);
  if (error == std::errc() && end == text->data() + text->size()) return port;
  throw base::UserError({.what = "MASTER_PORT = " + *text + " is not a port.",
                         .where = "environment variable MASTER_PORT",
                         .why = "Ports are whole numbers from 1 to 65535.",
                         .fix = "Unset it, then a free port is taken, or name one."});
}

std::vector<std::string> without_options(const std::vector<std::string>& words, const std::vector<std::string>& names) {
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--") {
      kept.insert(kept.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
      break;
    }
    const bool is_name = std::find(names.begin(), names.end(), words[i]) != names.end();
    const bool is_joined = std::any_of(names.begin(), names.end(),
                                       [&](const std::string& name) { return words[i].starts_with(name + "="); });
    if (is_name) ++i;  // its value
    if (!is_name && !is_joined) kept.push_back(words[i]);
  }
  return kept;
}

}  // namespace pharos::launch
