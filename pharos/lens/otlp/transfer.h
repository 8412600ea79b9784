// One try of one export request: a libcurl handle set up for a POST of OTLP, and what came of it.
#pragma once

#include <curl/curl.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>

#include "pharos/lens/otlp/answer.h"
#include "pharos/lens/otlp/options.h"

namespace pharos::lens::otlp {

/// Cannot be moved: libcurl keeps addresses of its parts.
class Transfer {
 public:
  /// `body` must outlive the transfer; it is compressed and framed already (make_body). `limit`: of this try.
  /// `needs_new_connection`: do not take one from the pool, the last one there has failed.
  Transfer(const SignalOptions& options, Signal signal, const std::string& body, std::chrono::milliseconds limit,
           bool needs_new_connection);
  Transfer(const Transfer&) = delete;

  CURL* handle() const { return handle_.get(); }

  /// The verdict on a transfer that libcurl has finished with `code`.
  Verdict verdict(CURLcode code) const;

 private:
  struct HandleCleanup {
    void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
  };
  struct ListCleanup {
    void operator()(curl_slist* list) const { curl_slist_free_all(list); }
  };

  void set_common(const std::string& body, std::chrono::milliseconds limit, bool needs_new_connection);
  void set_http2();
  void set_tls();
  void set_headers(std::chrono::milliseconds limit);
  void add_header(const std::string& line);

  const SignalOptions& options_;
  Answer answer_;
  std::array<char, CURL_ERROR_SIZE> error_text_{};
  std::unique_ptr<curl_slist, ListCleanup> headers_;
  std::unique_ptr<CURL, HandleCleanup> handle_;  ///< last: goes first, it refers to the others
};

/// `message` as it travels: compressed if the options say so, framed for gRPC.
std::string make_body(const SignalOptions& options, std::string message);

/// What libcurl's error means. `detail`: its text, may be empty.
Verdict judge_error(CURLcode code, const std::string& detail, Protocol protocol);

}  // namespace pharos::lens::otlp
