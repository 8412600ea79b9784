#include "pharos/lens/otlp/url.h"

#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <memory>

#include "pharos/lens/variables/scalar.h"

namespace pharos::lens::otlp {
namespace {

using Handle = std::unique_ptr<CURLU, decltype(&curl_url_cleanup)>;

/// A part, or nothing where the URL has none.
std::string part_of(CURLU* handle, CURLUPart part, unsigned int flags = 0) {
  char* text = nullptr;
  if (curl_url_get(handle, part, &text, flags) != CURLUE_OK) return {};
  std::string copy(text);
  curl_free(text);
  return copy;
}

}  // namespace

bool parse_url(const std::string& text, std::string_view default_scheme, Url& url, std::string& problem) {
  std::string complete = text;
  if (text.find("://") == std::string::npos) {
    if (default_scheme.empty()) {
      problem = "it has no scheme (http:// or https://)";
      return false;
    }
    complete = default_scheme;
    complete.append("://").append(text);
  }
  if (std::any_of(complete.begin(), complete.end(), [](unsigned char c) { return c <= ' ' || c == 0x7F; })) {
    problem = "it contains a blank or a control character";
    return false;
  }
  const Handle handle(curl_url(), &curl_url_cleanup);
  const CURLUcode code = curl_url_set(handle.get(), CURLUPART_URL, complete.c_str(), CURLU_NON_SUPPORT_SCHEME);
  if (code != CURLUE_OK) {
    problem = curl_url_strerror(code);
    return false;
  }
  url = {.scheme = part_of(handle.get(), CURLUPART_SCHEME),
         .host = part_of(handle.get(), CURLUPART_HOST),
         .port = part_of(handle.get(), CURLUPART_PORT),
         .path = part_of(handle.get(), CURLUPART_PATH),
         .query = part_of(handle.get(), CURLUPART_QUERY),
         .user = part_of(handle.get(), CURLUPART_USER, CURLU_URLDECODE),
         .password = part_of(handle.get(), CURLUPART_PASSWORD, CURLU_URLDECODE)};
  if (url.scheme != "http" && url.scheme != "https") {
    problem = "its scheme is neither http nor https";
    return false;
  }
  if (url.host.empty()) {
    problem = "it has no host";
    return false;
  }
  if (url.path.empty()) url.path.assign(1, '/');
  return true;
}

std::string to_string(const Url& url) {
  std::string text = url.scheme;
  text.append("://").append(url.host);
  if (!url.port.empty()) text.append(":").append(url.port);
  text.append(url.path);
  if (!url.query.empty()) text.append("?").append(url.query);
  return text;
}

std::string printable_url(std::string_view url) {
  url = url.substr(0, url.find_first_of("?#"));
  const std::size_t scheme_end = url.find("://");
  const std::size_t start = scheme_end == std::string_view::npos ? 0 : scheme_end + 3;
  const std::size_t at = url.substr(start, url.find('/', start) - start).rfind('@');
  if (at == std::string_view::npos) return shown(url);
  std::string hidden(url.substr(0, start));
  return shown(hidden.append("…").append(url.substr(start + at)));
}

}  // namespace pharos::lens::otlp
