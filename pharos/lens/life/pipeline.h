// What the exporter thread does with telemetry data: local exporters (console, files) at once, OTLP in batches from
// bounded queues, metrics at their interval. Nothing here waits for a receiver; what is lost is counted.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pharos/lens/data/log_data.h"
#include "pharos/lens/data/resource.h"
#include "pharos/lens/data/span_data.h"
#include "pharos/lens/exporter.h"
#include "pharos/lens/otlp/sender.h"

namespace pharos::lens {

class MeterProvider;
class LogQueue;

/// How items wait for OTLP (OTEL_BSP_*, OTEL_BLRP_*).
struct BatchOptions {
  std::chrono::milliseconds schedule_delay{5000};  ///< longest wait of an item while the receiver keeps up
  std::size_t max_queue = 65536;                   ///< items; when full the oldest are dropped and counted
  std::size_t max_batch = 512;                     ///< items of one request
};

struct PipelineOptions {
  std::vector<std::shared_ptr<Exporter>> exporters = {};
  std::optional<otlp::Options> otlp = {};  ///< absent: nothing is sent
  bool sends_traces = true;
  bool sends_metrics = true;
  bool sends_logs = true;
  BatchOptions spans = {};
  BatchOptions logs = {.schedule_delay = std::chrono::milliseconds(1000), .max_queue = 2048};
  std::chrono::milliseconds metric_interval{10000};
  std::chrono::milliseconds local_interval{500};  ///< between batches to the local exporters
};

/// Items of one signal (spans, data points, records) since the start: each is in one of the first five. Where a signal
/// is sent over OTLP these are about OTLP; else an item has failed if any exporter did not take it.
struct ItemCounts {
  std::uint64_t exported = 0;
  std::uint64_t dropped = 0;         ///< the queue was full, or shutdown came first
  std::uint64_t failed = 0;          ///< an exporter or the receiver refused them, or no try succeeded
  std::uint64_t rejected = 0;        ///< the receiver's partial success
  std::uint64_t queued = 0;          ///< waiting or under way now
  std::uint64_t failed_locally = 0;  ///< beside OTLP: an exporter did not take them
};

/// By otlp::Signal.
using ExportCounts = std::array<ItemCounts, otlp::kNumSignals>;

/// Belongs to the exporter thread, but for wake() and counts().
class Pipeline {
 public:
  /// metrics, logs: may be null; outlive this.
  Pipeline(PipelineOptions options, Resource resource, MeterProvider* metrics, LogQueue* logs);
  ~Pipeline();

  /// Whether anything wants spans at all.
  bool wants_spans() const;
  void add_spans(std::vector<SpanData> spans);

  /// Whether there is any exporter or receiver.
  bool exports() const { return options_.otlp.has_value() || !options_.exporters.empty(); }

  /// Takes the log records that wait; turn() does it too.
  void take_logs();

  /// Metrics are collected in the next turn in which they can be sent, not at their interval; after the last collection
  /// never again, or there would always be one under way.
  void request_collection(bool is_last) {
    is_collection_wanted_ = metrics_ != nullptr;
    is_last_collection_ = is_last;
  }

  /// One turn: takes logs and metrics that are due, feeds what is due (with `everything`: all that waits) to the
  /// exporters, moves transfers on. Waits at most `wait`, and only for the network.
  void turn(bool everything, std::chrono::milliseconds wait);
  bool waits_for_network() const { return sender_ != nullptr; }

  /// Items of each signal taken in so far; of metrics collections, one that is requested included.
  using Position = std::array<std::uint64_t, otlp::kNumSignals>;
  Position position() const;
  /// Whether everything before `position` was delivered or counted as lost.
  bool is_settled(const Position& position) const;

  /// Gives up what is queued or under way; it is counted.
  void give_up();

  /// Ends all connections. Nothing but wake() and counts() may follow; not at the same time as wake().
  void close() { sender_.reset(); }

  /// From any thread: ends the wait of a running turn.
  void wake();
  ExportCounts counts() const;

 private:
  /// Items of a signal (of metrics: collections) are numbered as they come; the last of them are in its queue.
  struct Track {
    std::uint64_t next_number = 0;
    std::multiset<std::uint64_t> under_way;  ///< first numbers of requests that are not done
  };
  template <typename Item>
  struct Queue {
    otlp::Signal signal;
    BatchOptions batch;
    std::deque<Item> items = {};
    std::chrono::steady_clock::time_point oldest = {};  ///< when the first of them came, if there are any
  };

  template <typename Item>
  void enqueue(Queue<Item>& queue, std::vector<Item>& items);
  template <typename Item, typename Encode>
  void send_due(Queue<Item>& queue, bool everything, Encode&& encode);
  template <typename Item>
  void drop_all(Queue<Item>& queue);
  void submit(otlp::Signal signal, std::string body, std::uint64_t num_items, std::uint64_t first_number);
  template <typename Export>
  void export_locally(otlp::Signal signal, std::uint64_t num_items, Export&& export_to);
  void export_local_spans(bool everything);
  void collect_metrics();
  /// Once for each of `who` and each kind of trouble.
  void complain(const void* who, bool is_loss, const std::string& text);
  ItemCounts& counts_of(otlp::Signal signal) { return counts_[static_cast<std::size_t>(signal)]; }
  Track& track_of(otlp::Signal signal) { return tracks_[static_cast<std::size_t>(signal)]; }
  bool sends(otlp::Signal signal) const;

  PipelineOptions options_;
  Resource resource_;
  MeterProvider* metrics_;
  LogQueue* logs_;
  std::unique_ptr<otlp::Sender> sender_;

  std::array<Track, otlp::kNumSignals> tracks_;
  Queue<SpanData> span_queue_;
  Queue<LogData> log_queue_;
  std::vector<SpanData> local_spans_;
  std::chrono::steady_clock::time_point last_local_export_;
  std::chrono::steady_clock::time_point last_collection_;
  bool is_collection_wanted_ = false;
  bool is_last_collection_ = false;
  std::set<std::pair<const void*, bool>> complained_;

  mutable std::mutex mutex_;  ///< counts_
  ExportCounts counts_ = {};
};

}  // namespace pharos::lens
