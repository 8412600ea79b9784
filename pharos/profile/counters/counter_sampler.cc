#include "pharos/profile/counters/counter_sampler.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/lens/life/quiet_thread.h"

namespace pharos::profile {

using std::chrono::steady_clock;

/// What the thread does, and what it shares with its owner.
class CounterSampler::Thread {
 public:
  Thread(ReadCounters read, double hz, std::int64_t step, std::function<void(const SampledTraffic&)> publish)
      : read_(std::move(read)),
        period_(static_cast<std::int64_t>(1e9 / hz)),
        publish_(std::move(publish)),
        last_step_(step) {}

  void run();

  // Of the owner.
  void mark(std::int64_t step);
  bool wait_for_first_reading(std::chrono::milliseconds patience);
  bool leave(std::chrono::milliseconds patience);
  void abandon(std::string why);
  std::optional<Reading> first_reading() const { return locked(first_reading_); }
  std::string failure() const { return locked(failure_); }
  std::vector<StepTraffic> take();

 private:
  template <typename Value>
  Value locked(const Value& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }
  void begin();
  void loop();
  void sample(std::optional<std::int64_t> step);

  const ReadCounters read_;
  const std::chrono::nanoseconds period_;
  const std::function<void(const SampledTraffic&)> publish_;

  // Of the thread alone.
  TrafficMeter meter_;
  std::int64_t last_sample_ns_ = 0;
  std::int64_t last_mark_ns_ = 0;
  std::int64_t last_step_;
  PortTraffic since_mark_;

  std::mutex publish_mutex_;  ///< held while publish_ runs; guards is_abandoned_
  bool is_abandoned_ = false;

  mutable std::mutex mutex_;  ///< guards what follows; never held while a device is read
  std::condition_variable wake_, changed_;
  std::optional<std::int64_t> marked_step_;
  bool is_leaving_ = false, has_ended_ = false;
  std::optional<Reading> first_reading_;
  std::vector<StepTraffic> finished_;
  std::string failure_;
};

void CounterSampler::Thread::mark(std::int64_t step) {
  {
    const std::lock_guard lock(mutex_);
    marked_step_ = step;
  }
  wake_.notify_one();
}

bool CounterSampler::Thread::wait_for_first_reading(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, steady_clock::now() + patience, [this] { return first_reading_ || has_ended_; });
}

bool CounterSampler::Thread::leave(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  is_leaving_ = true;
  wake_.notify_one();
  return changed_.wait_until(lock, steady_clock::now() + patience, [this] { return has_ended_; });
}

void CounterSampler::Thread::abandon(std::string why) {
  {
    const std::lock_guard lock(publish_mutex_);
    is_abandoned_ = true;
  }
  const std::lock_guard lock(mutex_);
  failure_ = std::move(why);
}

std::vector<StepTraffic> CounterSampler::Thread::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(finished_, {});
}

void CounterSampler::Thread::run() {
  std::string failure;
  try {
    begin();
    loop();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = std::move(failure);
  has_ended_ = true;
  changed_.notify_all();
}

void CounterSampler::Thread::begin() {
  Reading reading = read_();
  meter_.advance(reading);
  last_sample_ns_ = last_mark_ns_ = base::monotonic_ns();
  const std::lock_guard lock(mutex_);
  first_reading_ = std::move(reading);
  changed_.notify_all();
}

void CounterSampler::Thread::loop() {
  auto last = steady_clock::now();
  std::unique_lock lock(mutex_);
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
}

void CounterSampler::Thread::sample(std::optional<std::int64_t> step) {
  SampledTraffic sampled{.start_ns = last_sample_ns_};
  sampled.ports = meter_.advance(read_());
  sampled.end_ns = last_sample_ns_ = base::monotonic_ns();
  add(since_mark_, sampled.ports);
  {
    const std::lock_guard lock(publish_mutex_);
    if (is_abandoned_) return;  // telemetry may be gone
    publish_(sampled);
  }
  if (!step) return;
  StepTraffic finished{.first_step = last_step_ + 1,
                       .last_step = *step,
                       .duration_ns = sampled.end_ns - std::exchange(last_mark_ns_, sampled.end_ns),
                       .ports = std::exchange(since_mark_, {})};
  last_step_ = *step;
  const std::lock_guard lock(mutex_);
  finished_.push_back(std::move(finished));
}

CounterSampler::CounterSampler(ReadCounters read, double hz, std::int64_t step,
                               std::function<void(const SampledTraffic&)> publish, std::chrono::milliseconds patience)
    : patience_(patience), state_(std::make_shared<Thread>(std::move(read), hz, step, std::move(publish))) {
  thread_ = lens::internal::start_quiet_thread([state = state_] { state->run(); });
  state_->wait_for_first_reading(patience);
}

std::optional<Reading> CounterSampler::first_reading() const { return state_->first_reading(); }

void CounterSampler::mark(std::int64_t step) { state_->mark(step); }

std::vector<StepTraffic> CounterSampler::take() { return state_->take(); }

std::vector<StepTraffic> CounterSampler::finish() {
  if (!thread_.joinable()) return take();
  if (state_->leave(patience_)) {
    thread_.join();
  } else {
    state_->abandon("a device has not answered for " + std::to_string(patience_.count()) + " ms");
    thread_.detach();
  }
  return take();
}

std::string CounterSampler::failure() const { return state_->failure(); }

}  // namespace pharos::profile
