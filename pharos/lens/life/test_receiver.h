// A receiver of OTLP over HTTP in a few lines, for tests that need one in their own process.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "pharos/lens/otlp/options.h"

namespace pharos::lens {

/// Answers of TestReceiver, whole HTTP messages.
inline std::string http_answer(const std::string& status, const std::string& body = "",
                               const std::string& header = "") {
  return "HTTP/1.1 " + status + "\r\nContent-Type: application/x-protobuf\r\n" + header +
         "Connection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}
/// A partial success with 3 rejected items, as each of the three signals says it.
inline const std::string kThreeRejected("\x0a\x02\x08\x03", 4);

/// One answer for each request, in the order of their arrival; then the connection is closed.
class TestReceiver {
 public:
  /// Of request 0, 1, …; an empty text closes the connection without an answer.
  using Answer = std::function<std::string(int number)>;

  /// Without an `answer` connections are never even accepted: they hang.
  explicit TestReceiver(Answer answer) : answer_(std::move(answer)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener_, 64) != 0) std::abort();
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    if (answer_ != nullptr) thread_ = std::thread([this] { serve(); });
  }
  ~TestReceiver() {
    shutdown(listener_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    close(listener_);
  }
  TestReceiver(const TestReceiver&) = delete;

  /// Of all signals; `timeout` of an export, all tries together.
  otlp::Options options(std::chrono::milliseconds timeout = std::chrono::milliseconds(10000)) const {
    otlp::Options options;
    for (const otlp::Signal signal : {otlp::Signal::kTraces, otlp::Signal::kMetrics, otlp::Signal::kLogs}) {
      otlp::SignalOptions& of_signal = options[static_cast<std::size_t>(signal)];
      of_signal.protocol = otlp::Protocol::kHttpProtobuf;
      of_signal.url = url_ + "/v1/" + otlp::signal_name(signal);
      of_signal.timeout = timeout;
    }
    return options;
  }
  const std::string& url() const { return url_; }
  int num_requests() const { return num_requests_.load(); }

 private:
  void serve() {
    for (int connection = 0; (connection = accept(listener_, nullptr, nullptr)) >= 0; close(connection)) {
      if (!read_request(connection)) continue;
      const std::string text = answer_(num_requests_++);
      send(connection, text.data(), text.size(), MSG_NOSIGNAL);
    }
  }

  /// Head and body; false when the client hung up.
  static bool read_request(int connection) {
    std::string text;
    char buffer[65536];
    while (true) {
      const std::size_t end = text.find("\r\n\r\n");
      if (end != std::string::npos) {
        const std::size_t length = text.find("Content-Length: ");
        const std::size_t body = length == std::string::npos ? 0 : std::strtoul(&text[length + 16], nullptr, 10);
        if (text.size() >= end + 4 + body) return true;
      }
      const ssize_t count = recv(connection, buffer, sizeof buffer, 0);
      if (count <= 0) return false;
      text.append(buffer, static_cast<std::size_t>(count));
    }
  }

  Answer answer_;
  int listener_ = -1;
  std::string url_;
  std::atomic<int> num_requests_{0};
  std::thread thread_;
};

}  // namespace pharos::lens
