#include "pharos/lens/life/pipeline.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iterator>
#include <span>
#include <thread>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/lens/logs/log_queue.h"
#include "pharos/lens/metrics/meter.h"
#include "pharos/lens/otlp/encode.h"

namespace pharos::lens {

using otlp::Signal;
using Clock = std::chrono::steady_clock;

Pipeline::Pipeline(PipelineOptions options, Resource resource, MeterProvider* metrics, LogQueue* logs)
    : options_(std::move(options)),
      resource_(std::move(resource)),
      metrics_(metrics),
      logs_(logs),
      span_queue_{Signal::kTraces, options_.spans},
      log_queue_{Signal::kLogs, options_.logs},
      last_local_export_(Clock::now()),
      last_collection_(Clock::now()) {
  if (options_.otlp) sender_ = std::make_unique<otlp::Sender>(*options_.otlp);
}

Pipeline::~Pipeline() = default;

bool Pipeline::sends(Signal signal) const {
  const bool wanted[] = {options_.sends_traces, options_.sends_metrics, options_.sends_logs};
  return sender_ != nullptr && wanted[static_cast<std::size_t>(signal)];
}

bool Pipeline::wants_spans() const { return !options_.exporters.empty() || sends(Signal::kTraces); }

void Pipeline::add_spans(std::vector<SpanData> spans) {
  if (!options_.exporters.empty()) local_spans_.insert(local_spans_.end(), spans.begin(), spans.end());
  if (sends(Signal::kTraces)) enqueue(span_queue_, spans);
}

Pipeline::Position Pipeline::position() const {
  Position position;
  for (std::size_t signal = 0; signal < position.size(); ++signal) position[signal] = tracks_[signal].next_number;
  if (is_collection_wanted_) ++position[static_cast<std::size_t>(Signal::kMetrics)];
  return position;
}

bool Pipeline::is_settled(const Position& position) const {
  const std::uint64_t waiting[] = {span_queue_.items.size(), 0, log_queue_.items.size()};
  for (std::size_t signal = 0; signal < position.size(); ++signal) {
    const Track& track = tracks_[signal];
    if (track.next_number - waiting[signal] < position[signal]) return false;
    if (!track.under_way.empty() && *track.under_way.begin() < position[signal]) return false;
  }
  return local_spans_.empty();
}

template <typename Item>
void Pipeline::enqueue(Queue<Item>& queue, std::vector<Item>& items) {
  if (items.empty()) return;
  if (queue.items.empty()) queue.oldest = Clock::now();
  track_of(queue.signal).next_number += items.size();
  std::move(items.begin(), items.end(), std::back_inserter(queue.items));
  const std::size_t capacity = queue.batch.max_queue;
  const std::size_t surplus = queue.items.size() > capacity ? queue.items.size() - capacity : 0;
  queue.items.erase(queue.items.begin(), queue.items.begin() + static_cast<std::ptrdiff_t>(surplus));
  const std::lock_guard lock(mutex_);
  counts_of(queue.signal).dropped += surplus;
  counts_of(queue.signal).queued += items.size() - surplus;
}

template <typename Item, typename Encode>
void Pipeline::send_due(Queue<Item>& queue, bool everything, Encode&& encode) {
  const auto is_due = [&] {
    if (queue.items.empty() || !sender_->has_room(queue.signal)) return false;
    return everything || queue.items.size() >= queue.batch.max_batch ||
           Clock::now() - queue.oldest >= queue.batch.schedule_delay;
  };
  while (is_due()) {
    const std::uint64_t first_number = track_of(queue.signal).next_number - queue.items.size();
    const std::size_t num_items = std::min(queue.items.size(), queue.batch.max_batch);
    const auto end = queue.items.begin() + static_cast<std::ptrdiff_t>(num_items);
    const std::vector<Item> items(std::make_move_iterator(queue.items.begin()), std::make_move_iterator(end));
    queue.items.erase(queue.items.begin(), end);
    queue.oldest = Clock::now();
    submit(queue.signal, encode(std::span<const Item>(items)), num_items, first_number);
  }
}

void Pipeline::submit(Signal signal, std::string body, std::uint64_t num_items, std::uint64_t first_number) {
  track_of(signal).under_way.insert(first_number);
  sender_->submit(signal, std::move(body), num_items,
                  [this, signal, num_items, first_number](const otlp::Outcome& done) {
                    auto& under_way = track_of(signal).under_way;
                    under_way.erase(under_way.find(first_number));
                    {
                      const std::lock_guard lock(mutex_);
                      ItemCounts& counts = counts_of(signal);
                      counts.exported += done.accepted;
                      counts.rejected += done.rejected;
                      counts.failed += done.failed;
                      counts.queued -= num_items;
                    }
                    if (!done.message.empty()) {
                      complain(&track_of(signal), done.failed + done.rejected > 0,
                               std::string("OTLP ") + otlp::signal_name(signal) + ": " + done.message);
                    }
                  });
}

template <typename Export>
void Pipeline::export_locally(Signal signal, std::uint64_t num_items, Export&& export_to) {
  bool is_taken = true;
  for (const auto& exporter : options_.exporters) {
    std::string reason;
    try {
      export_to(*exporter);
      continue;
    } catch (const std::exception& error) {
      reason = error.what();
    } catch (...) {
      reason = "an exception of unknown type";
    }
    is_taken = false;
    complain(exporter.get(), true, "exporter " + exporter->name() + " failed: " + reason);
  }
  const std::lock_guard lock(mutex_);
  ItemCounts& counts = counts_of(signal);
  if (!sends(signal)) {
    (is_taken ? counts.exported : counts.failed) += num_items;
  } else if (!is_taken) {
    counts.failed_locally += num_items;
  }
}

void Pipeline::export_local_spans(bool everything) {
  if (local_spans_.empty()) return;
  constexpr std::size_t kLocalBatch = 2048;
  const auto now = Clock::now();
  if (!everything && local_spans_.size() < kLocalBatch && now - last_local_export_ < options_.local_interval) return;
  last_local_export_ = now;
  export_locally(Signal::kTraces, local_spans_.size(),
                 [this](Exporter& exporter) { exporter.export_spans(local_spans_, resource_); });
  local_spans_.clear();
}

void Pipeline::take_logs() {
  if (logs_ == nullptr) return;
  std::vector<LogData> records = logs_->take(options_.logs.max_queue);
  if (records.empty()) return;
  if (!options_.exporters.empty()) {
    export_locally(Signal::kLogs, records.size(),
                   [&](Exporter& exporter) { exporter.export_logs(records, resource_); });
  }
  if (sends(Signal::kLogs)) enqueue(log_queue_, records);
}

void Pipeline::collect_metrics() {
  if (metrics_ == nullptr) return;
  const auto now = Clock::now();
  const bool is_due = !is_last_collection_ && now - last_collection_ >= options_.metric_interval;
  if (!is_collection_wanted_ && !is_due) return;
  // Nothing is lost by leaving a collection out: sums and histograms go on, gauges keep their last value.
  if (sends(Signal::kMetrics) && !sender_->has_room(Signal::kMetrics)) return;
  last_collection_ = now;
  is_collection_wanted_ = false;
  const std::uint64_t number = track_of(Signal::kMetrics).next_number++;
  const MetricsData metrics = metrics_->collect(base::wall_ns());
  const std::uint64_t num_points = count_points(metrics);
  if (num_points == 0) return;
  if (!options_.exporters.empty()) {
    export_locally(Signal::kMetrics, num_points,
                   [&](Exporter& exporter) { exporter.export_metrics(metrics, resource_); });
  }
  if (!sends(Signal::kMetrics)) return;
  {
    const std::lock_guard lock(mutex_);
    counts_of(Signal::kMetrics).queued += num_points;
  }
  submit(Signal::kMetrics, otlp::encode_metrics(metrics, resource_), num_points, number);
}

void Pipeline::turn(bool everything, std::chrono::milliseconds wait) {
  take_logs();
  collect_metrics();
  export_local_spans(everything);
  if (sender_ == nullptr) return;
  send_due(log_queue_, everything,
           [this](std::span<const LogData> records) { return otlp::encode_logs(records, resource_); });
  send_due(span_queue_, everything,
           [this](std::span<const SpanData> spans) { return otlp::encode_traces(spans, resource_); });
  sender_->pump(wait);
}

template <typename Item>
void Pipeline::drop_all(Queue<Item>& queue) {
  const std::lock_guard lock(mutex_);
  counts_of(queue.signal).dropped += queue.items.size();
  counts_of(queue.signal).queued -= queue.items.size();
  queue.items.clear();
}

void Pipeline::give_up() {
  if (std::exchange(is_collection_wanted_, false)) ++track_of(Signal::kMetrics).next_number;
  if (sender_ != nullptr) sender_->cancel();
  drop_all(span_queue_);
  drop_all(log_queue_);
}

void Pipeline::wake() {
  if (sender_ != nullptr) sender_->wake();
}

ExportCounts Pipeline::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void Pipeline::complain(const void* who, bool is_loss, const std::string& text) {
  if (!complained_.insert({who, is_loss}).second) return;
  std::fprintf(stderr, "telemetry: %s; the run goes on%s\n", text.c_str(), is_loss ? ", losses are counted" : "");
}

}  // namespace pharos::lens
