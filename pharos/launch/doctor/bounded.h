// A call with a time limit that holds whatever the call does: it runs in a child process. A dead network file system or
// a stuck driver stops a thread inside the kernel, where nothing of this process can end it; a child can be left
// behind.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace pharos::launch {

struct BoundedResult {
  enum class End : std::uint8_t {
    kDone,      ///< `value` is what the call returned
    kThrew,     ///< `text` is what was thrown
    kDied,      ///< `text` says by which signal or exit code
    kTimedOut,  ///< the child was killed, and left behind if it did not go
  };
  End end = End::kDone;
  nlohmann::json value;
  std::string text;
};

/// A call under way. The child is made from this process as it is: start it before threads that hold locks, and before
/// a device is used, which a child cannot take over.
class BoundedCall {
 public:
  explicit BoundedCall(const std::function<nlohmann::json()>& call);
  ~BoundedCall();
  BoundedCall(BoundedCall&& other) noexcept;
  BoundedCall& operator=(BoundedCall&&) = delete;
  /// Waits for the result until base::monotonic_ns() is `deadline_ns`. Once.
  BoundedResult wait(std::int64_t deadline_ns);

 private:
  void end_child();
  pid_t child_ = -1;
  int pipe_ = -1;
};

}  // namespace pharos::launch
