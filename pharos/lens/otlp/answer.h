// What a receiver's answer to an export request means: delivered, worth another try, or refused (OTLP
// specification 1.x, "OTLP/gRPC Response" and "OTLP/HTTP Response"; gRPC over HTTP/2).
//
// Decisions the specification leaves open:
//   - A success whose body cannot be read counts as delivered, with a warning: a second copy would be worse.
//   - Any status 2xx is a success.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "pharos/lens/otlp/options.h"

namespace pharos::lens::otlp {

/// A whole answer as it arrived; texts are empty where the receiver sent none.
struct Answer {
  long http_status = 0;
  std::string body;  ///< at most kKeptBodyBytes
  bool is_cut = false;
  std::string content_type;
  std::string retry_after;
  std::string grpc_status;   ///< of the header or the trailer, as are the next two
  std::string grpc_message;  ///< percent-encoded
  std::string grpc_details;  ///< base64 of a google.rpc.Status

  static constexpr std::size_t kKeptBodyBytes = 64 << 10;

  /// Notes one line of a header or trailer, with or without its line end. A status line starts a new answer.
  void add_header_line(std::string_view line);
  /// Keeps what fits.
  void add_body(std::string_view bytes);
};

enum class Fate : std::uint8_t { kDelivered, kRetry, kRefused };

struct Verdict {
  Fate fate = Fate::kDelivered;
  std::uint64_t num_rejected = 0;                             ///< of a partial success
  std::string message = {};                                   ///< reason, or the receiver's warning; one line, readable
  std::optional<std::chrono::milliseconds> retry_after = {};  ///< the receiver's wish
};

/// `wall_seconds`: Unix time, against which a Retry-After date counts.
Verdict judge(Protocol protocol, const Answer& answer, std::int64_t wall_seconds);

/// `message` in gRPC's frame: a flag that says compressed, four bytes of length (big-endian), the bytes.
std::string grpc_frame(std::string_view message, bool is_compressed);

}  // namespace pharos::lens::otlp
