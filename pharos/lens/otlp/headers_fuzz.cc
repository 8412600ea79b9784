// Fuzz entry point of what OTLP gets from outside: header lists and endpoints of the environment, answers of receivers.
// The first byte says which. Nothing may be thrown, and what is let through must be what its reader relies on.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "pharos/lens/otlp/answer.h"
#include "pharos/lens/otlp/headers.h"
#include "pharos/lens/otlp/url.h"
#include "pharos/lens/otlp/utf8.h"

namespace pharos::lens::otlp {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void fuzz_headers(std::string_view text) {
  std::vector<std::string> warnings;
  for (const auto& [name, value] : parse_headers(text, "V", warnings)) {
    require(!name.empty());
    for (const std::string& part : {name, value}) {
      require(part.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
    }
  }
}

void fuzz_url(std::string_view text) {
  Url url;
  std::string problem;
  if (!parse_url(std::string(text), "https", url, problem)) return require(!problem.empty());
  require(!url.host.empty() && url.path.front() == '/');
  Url again;
  require(parse_url(to_string(url), "", again, problem) && again.user.empty() && again.password.empty());
  (void)printable_url(text);
}

/// Header lines, then an empty line, then the body.
void fuzz_answer(Protocol protocol, long http_status, std::string_view text) {
  Answer answer;
  const std::size_t end = std::min(text.find("\n\n"), text.size());
  for (std::size_t start = 0; start < end;) {
    const std::size_t line_end = std::min(text.find('\n', start), end);
    answer.add_header_line(text.substr(start, line_end - start));
    start = line_end + 1;
  }
  if (end < text.size()) answer.add_body(text.substr(end + 2));
  answer.http_status = http_status;
  const Verdict verdict = judge(protocol, answer, 1'800'000'000);
  require(is_utf8(verdict.message) && verdict.message.find('\n') == std::string::npos);
  require(!verdict.retry_after || verdict.retry_after->count() >= 0);
  require(verdict.fate == Fate::kDelivered || !verdict.message.empty());
}

void fuzz_utf8(std::string_view text) {
  const std::string repaired = repair_utf8(text);
  require(is_utf8(repaired) && is_utf8(text) == (repaired == text));
}

}  // namespace
}  // namespace pharos::lens::otlp

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t num_bytes) {
  using namespace pharos::lens::otlp;
  if (num_bytes == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, num_bytes - 1);
  switch (data[0]) {
    case 'h':
      fuzz_headers(text);
      break;
    case 'u':
      fuzz_url(text);
      break;
    case 'a':
      fuzz_answer(Protocol::kHttpProtobuf, 200, text);
      break;
    case 'r':
      fuzz_answer(Protocol::kHttpProtobuf, 503, text);
      break;
    case 'g':
      fuzz_answer(Protocol::kGrpc, 200, text);
      break;
    default:
      fuzz_utf8(text);
  }
  return 0;
}
