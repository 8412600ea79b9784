// Endpoint URLs, taken apart and put together by libcurl, so that what is checked here is what is used later.
#pragma once

#include <string>
#include <string_view>

namespace pharos::lens::otlp {

/// An endpoint URL in parts. User and password are decoded; they are secrets.
struct Url {
  std::string scheme;  ///< "http" or "https"
  std::string host;    ///< IPv6 addresses with brackets
  std::string port;    ///< empty: the scheme's
  std::string path;    ///< at least "/"
  std::string query;   ///< without "?"; may hold a key, is not to be printed
  std::string user;
  std::string password;
};

/// Parses `text`; `default_scheme` stands for one that is missing, empty: then it must be there. False, with the reason
/// in `problem` (which repeats nothing of `text`), when it is no URL of HTTP.
bool parse_url(const std::string& text, std::string_view default_scheme, Url& url, std::string& problem);

/// Scheme, host, port, path and query, without user and password.
std::string to_string(const Url& url);

/// `url` as messages may show it: nothing before "@" nor after "?", and not more than shown() leaves.
std::string printable_url(std::string_view url);

}  // namespace pharos::lens::otlp
