#include "pharos/profile/counters/counter_sampler.h"

#include <exception>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/lens/life/quiet_thread.h"

namespace pharos::profile {

CounterSampler::CounterSampler(ReadCounters read, double hz, std::int64_t step,
                               std::function<void(const SampledTraffic&)> publish)
    : read_(std::move(read)),
      period_(static_cast<std::int64_t>(1e9 / hz)),
      publish_(std::move(publish)),
      last_step_(step) {
  meter_.advance(read_());
  last_sample_ns_ = last_mark_ns_ = base::monotonic_ns();
  thread_ = lens::internal::start_quiet_thread([this] { run(); });
}

void CounterSampler::mark(std::int64_t step) {
  {
    const std::lock_guard lock(mutex_);
    marked_step_ = step;
  }
  wake_.notify_one();
}

std::vector<StepTraffic> CounterSampler::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(finished_, {});
}

std::vector<StepTraffic> CounterSampler::finish() {
  {
    const std::lock_guard lock(mutex_);
    is_leaving_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
  return take();
}

std::string CounterSampler::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void CounterSampler::run() {
  using std::chrono::steady_clock;
  auto last = steady_clock::now();
  std::unique_lock lock(mutex_);
  try {
    for (bool is_last = false; !is_last;) {
      wake_.wait_until(lock, last + period_, [this] { return is_leaving_ || marked_step_; });
      // Very short steps must not turn the sampler into a busy loop.
      wake_.wait_until(lock, last + period_ / 10, [this] { return is_leaving_; });
      is_last = is_leaving_;
      const auto step = std::exchange(marked_step_, std::nullopt);
      if (is_last && !step) break;
      lock.unlock();
      last = steady_clock::now();
      sample(step);
      lock.lock();
    }
  } catch (const std::exception& error) {
    if (!lock.owns_lock()) lock.lock();
    failure_ = error.what();
  }
}

void CounterSampler::sample(std::optional<std::int64_t> step) {
  SampledTraffic sampled{.start_ns = last_sample_ns_};
  sampled.ports = meter_.advance(read_());
  sampled.end_ns = last_sample_ns_ = base::monotonic_ns();
  add(since_mark_, sampled.ports);
  publish_(sampled);
  if (!step) return;
  StepTraffic finished{.first_step = last_step_ + 1,
                       .last_step = *step,
                       .duration_ns = sampled.end_ns - std::exchange(last_mark_ns_, sampled.end_ns),
                       .ports = std::exchange(since_mark_, {})};
  last_step_ = *step;
  const std::lock_guard lock(mutex_);
  finished_.push_back(std::move(finished));
}

}  // namespace pharos::profile
