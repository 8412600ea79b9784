#include "pharos/lens/otlp/headers.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "pharos/lens/variables/scalar.h"

namespace pharos::lens::otlp {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

/// Token of RFC 9110, section 5.6.2.
bool is_token(std::string_view name) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return !name.empty() && std::all_of(name.begin(), name.end(), [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kOthers.find(c) != std::string_view::npos;
  });
}

/// A line break would begin a header of someone else's choice.
bool is_field_value(std::string_view value) {
  return std::all_of(value.begin(), value.end(), [](unsigned char c) { return (c >= 0x20 && c != 0x7F) || c == '\t'; });
}

bool is_set_by_sender(std::string_view name) {
  static constexpr std::array<std::string_view, 7> kNames = {
      "content-type", "content-length", "content-encoding", "transfer-encoding", "te", "connection", "expect"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() || name.substr(0, 5) == "grpc-";
}

std::string lower_case(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

/// Why `name` and `value` are no header, or nothing.
std::string_view fault_of(const std::string& name, const std::string& value) {
  if (!is_token(name)) return "its name is not one that a header can have";
  if (!is_field_value(value)) return "its value contains a control character";
  if (is_set_by_sender(name)) return "the exporter sets this header itself";
  return {};
}

/// Warns of the first faulty entries, and says at the end how many there were: a list may be all faults.
class FaultyEntries {
 public:
  FaultyEntries(std::string_view variable, std::vector<std::string>& warnings)
      : variable_(variable), warnings_(warnings) {}
  FaultyEntries(const FaultyEntries&) = delete;
  ~FaultyEntries() {
    if (count_ <= kMostSaid) return;
    warnings_.push_back(variable_ + ": " + std::to_string(count_ - kMostSaid) + " further entries are left out, too.");
  }
  void add(int position, const std::string& name, std::string_view reason) {
    if (++count_ > kMostSaid) return;
    warnings_.push_back(variable_ + ": entry " + std::to_string(position) +
                        (name.empty() ? "" : " (" + shown(name) + ")") + " is left out: " + std::string(reason) + ".");
  }

 private:
  static constexpr int kMostSaid = 5;
  std::string variable_;
  std::vector<std::string>& warnings_;
  int count_ = 0;
};

}  // namespace

std::string percent_decode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low < 0) {
      decoded += text[i];
      continue;
    }
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

Headers parse_headers(std::string_view text, std::string_view variable, std::vector<std::string>& warnings) {
  Headers headers;
  FaultyEntries faulty(variable, warnings);
  int position = 0;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    const std::string_view entry = trimmed(text.substr(start, end - start));
    start = end + 1;
    ++position;
    if (entry.empty()) continue;
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos) {
      faulty.add(position, "", "it has no '='");
      continue;
    }
    std::string name = lower_case(percent_decode(trimmed(entry.substr(0, equals))));
    std::string value = percent_decode(trimmed(entry.substr(equals + 1)));
    if (const std::string_view fault = fault_of(name, value); !fault.empty()) {
      faulty.add(position, is_token(name) ? name : "", fault);
      continue;
    }
    std::erase_if(headers, [&](const auto& header) { return header.first == name; });
    headers.emplace_back(std::move(name), std::move(value));
  }
  return headers;
}

std::string basic_authorization(std::string_view user, std::string_view password) {
  const std::string plain = std::string(user) + ":" + std::string(password);
  std::string encoded((plain.size() + 2) / 3 * 4 + 1, '\0');  // EVP_EncodeBlock ends its text with a zero byte
  const int num_bytes =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(encoded.data()),
                      reinterpret_cast<const unsigned char*>(plain.data()), static_cast<int>(plain.size()));
  encoded.resize(static_cast<std::size_t>(num_bytes));
  return "Basic " + encoded;
}

}  // namespace pharos::lens::otlp
