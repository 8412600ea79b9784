// Sends encoded OTLP requests over HTTP or gRPC without ever blocking: one libcurl multi handle for all signals, driven
// by whoever calls pump(), which is the exporter thread. Retries with backoff, Retry-After and RetryInfo, partial
// success (OTLP specification; lens.md section 8.3).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "pharos/lens/otlp/options.h"

namespace pharos::lens::otlp {

/// What became of one request: accepted + rejected + failed = its items.
struct Outcome {
  std::uint64_t accepted = 0;
  std::uint64_t rejected = 0;  ///< the receiver said so in a partial success
  std::uint64_t failed = 0;    ///< the request as a whole was not delivered
  std::string message;         ///< why, or the receiver's warning; empty when all is well
};

class Sender {
 public:
  using Done = std::function<void(const Outcome&)>;

  explicit Sender(Options options);
  ~Sender();  ///< as cancel()
  Sender(const Sender&) = delete;

  /// Whether another request of `signal` may be submitted: at most `kMaxInFlight` of a signal are under way, those that
  /// wait for their next try included.
  bool has_room(Signal signal) const;

  /// Starts sending `body` with `num_items` spans, points or records. `done` is called once, from pump() or cancel().
  void submit(Signal signal, std::string body, std::uint64_t num_items, Done done);

  /// Moves all transfers on; waits at most `wait` for something to happen, less when wake() is called or a retry is
  /// due.
  void pump(std::chrono::milliseconds wait);

  /// From any thread: a running or the next pump() returns at once.
  void wake();

  /// Nothing is under way.
  bool is_idle() const;

  /// Gives up everything under way: each is done with `failed`, message "cancelled …".
  void cancel();

  static constexpr int kMaxInFlight = 4;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pharos::lens::otlp
