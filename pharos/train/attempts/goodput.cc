#include "pharos/train/attempts/goodput.h"

#include <algorithm>
#include <utility>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/train/attempts/scheduler_log.h"

namespace pharos::train {
namespace {

/// Of each attempt, the last step whose result is there.
std::vector<std::int64_t> last_kept_steps(const std::vector<AttemptRecord>& attempts) {
  std::vector<std::int64_t> kept(attempts.size());
  std::optional<std::int64_t> first_later;  // the earliest step at which a later attempt began
  for (std::size_t i = attempts.size(); i-- > 0;) {
    const AttemptRecord& record = attempts[i];
    const bool may_still_save = record.cause.empty() && i + 1 == attempts.size();
    kept[i] = record.last_step.value_or(0);
    if (first_later) {
      kept[i] = std::min(kept[i], *first_later);
    } else if (record.cause != "done" && !may_still_save) {
      kept[i] = std::min(kept[i], record.last_saved_step.value_or(0));
    }
    if (record.first_step) first_later = std::min(first_later.value_or(*record.first_step), *record.first_step);
  }
  return kept;
}

GoodputSeconds account_of(const AttemptRecord& record, std::int64_t steps, std::int64_t useful_steps) {
  const AttemptSeconds& measured = record.seconds;
  const double sum = measured.start_up + measured.steps + measured.evaluation + measured.save;
  const double share = steps > 0 ? static_cast<double>(useful_steps) / static_cast<double>(steps) : 0;
  GoodputSeconds seconds{.useful_steps = share * measured.steps,
                         .lost_steps = (1 - share) * measured.steps,
                         .start_up = measured.start_up,
                         .evaluation = measured.evaluation,
                         .save = measured.save,
                         .wall = std::max(sum, record.end.value_or(record.start) - record.start),
                         .data_wait = std::min(measured.data_wait, measured.steps)};
  seconds.unaccounted = seconds.wall - sum;
  return seconds;
}

/// The time between attempts. One begins after the other has ended, whatever the clocks of their nodes say: a clock
/// that is behind makes no time, and once it is right again it makes none either.
class Waiting {
 public:
  /// Seconds before the attempt, which took `wall` seconds itself.
  double before(const AttemptRecord& record, double wall) {
    double seconds = 0;
    if (end_) seconds = record.start >= *end_ ? record.start - *end_ : std::max(0.0, record.start - clock_at_end_);
    end_ = end_.value_or(record.start) + seconds + wall;
    clock_at_end_ = record.end.value_or(record.start);
    return seconds;
  }

 private:
  std::optional<double> end_;  ///< of the attempt before, by the clock of the first one
  double clock_at_end_ = 0;    ///< what its own clock said then
};

}  // namespace

GoodputSeconds& GoodputSeconds::operator+=(const GoodputSeconds& other) {
  useful_steps += other.useful_steps;
  lost_steps += other.lost_steps;
  start_up += other.start_up;
  evaluation += other.evaluation;
  save += other.save;
  unaccounted += other.unaccounted;
  waiting += other.waiting;
  wall += other.wall;
  data_wait += other.data_wait;
  return *this;
}

double GoodputSeconds::goodput() const { return wall > 0 ? useful_steps / wall : 0; }

double GoodputSeconds::goodput_while_running() const {
  return wall - waiting > 0 ? useful_steps / (wall - waiting) : 0;
}

GoodputReport compute_goodput(AttemptHistory history) {
  GoodputReport report;
  report.num_damaged_lines = history.num_damaged_lines;
  const std::vector<AttemptRecord>& attempts = history.attempts;
  const std::vector<std::int64_t> kept_steps = last_kept_steps(attempts);
  Waiting waiting;
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    AttemptAccount account{.record = attempts[i], .is_open = attempts[i].cause.empty()};
    const AttemptRecord& record = account.record;
    if (!record.run_id.empty()) report.run_id = record.run_id;
    account.steps = std::max<std::int64_t>(0, record.last_step.value_or(0) - record.first_step.value_or(0));
    const std::int64_t kept = kept_steps[i] - record.first_step.value_or(0);
    account.useful_steps = std::clamp<std::int64_t>(kept, 0, account.steps);
    account.seconds = account_of(record, account.steps, account.useful_steps);
    account.seconds.waiting = waiting.before(record, account.seconds.wall);
    account.seconds.wall += account.seconds.waiting;
    report.seconds += account.seconds;
    report.steps += account.steps;
    report.useful_steps += account.useful_steps;
    report.attempts.push_back(std::move(account));
  }
  return report;
}

GoodputReport read_goodput(const std::filesystem::path& run_folder) {
  const std::filesystem::path path = run_folder / kAttemptsFile;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw base::UserError(
        {.what = "There is no account of attempts in '" + run_folder.string() + "'.",
         .where = path.string(),
         .why = error ? error.message() + "." : "`pharos train` writes it in the folder of a run at its start.",
         .fix = "Give the folder that --run-dir named."});
  }
  AttemptHistory history = parse_attempts(base::read_regular_file(path));
  if (history.attempts.empty()) {
    throw base::UserError({.what = "'" + path.string() + "' holds no attempt: it is empty or damaged.",
                           .where = path.string(),
                           .fix = "The next start of the run writes to it anew; what was before is not known."});
  }
  std::optional<RunMetrics> metrics;
  for (AttemptRecord& record : history.attempts) {
    if (record.end) continue;
    if (!metrics) metrics.emplace(run_folder / "metrics.jsonl");
    metrics->complete(record);
  }
  std::vector<std::string> node_failures = read_node_failures(run_folder, history.attempts);
  GoodputReport report = compute_goodput(std::move(history));
  report.node_failures = std::move(node_failures);
  return report;
}

}  // namespace pharos::train
