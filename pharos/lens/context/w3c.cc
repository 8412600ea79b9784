// The list headers of W3C: tracestate and baggage (lens.md section 7.1).
#include <algorithm>
#include <set>

#include "pharos/lens/context/propagation.h"
#include "pharos/lens/context/trim.h"

namespace pharos::lens {

using internal::trimmed;

namespace {

constexpr std::size_t kMaxMembers = 32;
constexpr std::size_t kMaxPairs = 180;
constexpr std::size_t kMaxPairBytes = 4096;
constexpr std::size_t kMaxBaggageBytes = 8192;

constexpr bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }
constexpr bool is_lower(char letter) { return letter >= 'a' && letter <= 'z'; }
constexpr bool is_upper(char letter) { return letter >= 'A' && letter <= 'Z'; }

/// Calls `visit` for each part of `text` between commas.
template <typename Visit>
void for_each_member(std::string_view text, Visit&& visit) {
  while (true) {
    const std::size_t comma = text.find(',');
    visit(text.substr(0, comma));
    if (comma == std::string_view::npos) return;
    text.remove_prefix(comma + 1);
  }
}

bool is_key_letter(char letter) {
  return is_lower(letter) || is_digit(letter) || letter == '_' || letter == '-' || letter == '*' || letter == '/';
}

/// `[a-z][_0-9a-z\-*/]{0,255}`, or tenant of at most 241 letters `@` system of at most 14.
bool is_tracestate_key(std::string_view key) {
  const std::size_t at = key.find('@');
  const std::string_view tenant = key.substr(0, at);
  if (tenant.empty() || !std::all_of(tenant.begin(), tenant.end(), is_key_letter)) return false;
  if (at == std::string_view::npos) return tenant.size() <= 256 && is_lower(tenant.front());
  const std::string_view system = key.substr(at + 1);
  const bool is_system = !system.empty() && system.size() <= 14 && is_lower(system.front()) &&
                         std::all_of(system.begin(), system.end(), is_key_letter);
  return is_system && tenant.size() <= 241 && (is_lower(tenant.front()) || is_digit(tenant.front()));
}

/// 1 to 256 printable letters without `,` and `=`, the last one no blank.
bool is_tracestate_value(std::string_view value) {
  const auto is_letter = [](char letter) { return letter >= ' ' && letter <= '~' && letter != ',' && letter != '='; };
  return !value.empty() && value.size() <= 256 && value.back() != ' ' &&
         std::all_of(value.begin(), value.end(), is_letter);
}

/// A token of RFC 7230: what a baggage key may consist of.
bool is_token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [kMarks](char letter) {
    return is_digit(letter) || is_lower(letter) || is_upper(letter) || kMarks.find(letter) != std::string_view::npos;
  });
}

/// Printable ASCII without blanks, quotes, commas, semicolons and backslashes.
bool is_baggage_text(std::string_view text) {
  constexpr std::string_view kForbidden = "\",;\\";
  return std::all_of(text.begin(), text.end(), [kForbidden](char letter) {
    return letter >= '!' && letter <= '~' && kForbidden.find(letter) == std::string_view::npos;
  });
}

/// A value and its properties, `v;p=x;q`, with blanks around `;` and a property's `=`.
bool is_baggage_value(std::string_view text) {
  std::size_t semicolon = text.find(';');
  if (!is_baggage_text(trimmed(text.substr(0, semicolon)))) return false;
  while (semicolon != std::string_view::npos) {
    text.remove_prefix(semicolon + 1);
    semicolon = text.find(';');
    const std::string_view property = text.substr(0, semicolon);
    const std::size_t equals = property.find('=');
    if (!is_token(trimmed(property.substr(0, equals)))) return false;
    if (equals != std::string_view::npos && !is_baggage_text(trimmed(property.substr(equals + 1)))) return false;
  }
  return true;
}

int hex_value(char letter) {
  if (is_digit(letter)) return letter - '0';
  if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
  if (letter >= 'A' && letter <= 'F') return letter - 'A' + 10;
  return -1;
}

/// Form decoding: `+` is a blank, `%41` a byte; a `%` without two digits stays.
std::string form_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_escape =
        text[i] == '%' && i + 2 < text.size() && hex_value(text[i + 1]) >= 0 && hex_value(text[i + 2]) >= 0;
    if (is_escape) {
      decoded += static_cast<char>(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2]));
      i += 2;
    } else {
      decoded += text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

std::string form_encoded(std::string_view text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (is_digit(letter) || is_lower(letter) || is_upper(letter) || letter == '_' || letter == '.' || letter == '-' ||
        letter == '~') {
      encoded += letter;
    } else if (letter == ' ') {
      encoded += '+';
    } else {
      encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return encoded;
}

void put(Baggage& baggage, std::string key, std::string value) {
  for (auto& [known, stored] : baggage) {
    if (known == key) {
      stored = std::move(value);
      return;
    }
  }
  baggage.emplace_back(std::move(key), std::move(value));
}

}  // namespace

std::string parse_tracestate(std::string_view text) {
  std::string state;
  std::set<std::string_view> keys;
  bool is_valid = true;
  for_each_member(text, [&](std::string_view member) {
    member = trimmed(member);
    if (member.empty() || !is_valid) return;
    const std::size_t equals = member.find('=');
    const std::string_view key = member.substr(0, equals);
    is_valid = equals != std::string_view::npos && is_tracestate_key(key) &&
               is_tracestate_value(member.substr(equals + 1)) && keys.insert(key).second && keys.size() <= kMaxMembers;
    if (!state.empty()) state += ',';
    state += member;
  });
  return is_valid ? state : "";
}

Baggage parse_baggage(std::string_view text) {
  Baggage baggage;
  if (text.size() > kMaxBaggageBytes) return baggage;
  std::size_t num_pairs = 0;
  for_each_member(text, [&](std::string_view member) {
    if (member.size() > kMaxPairBytes || num_pairs >= kMaxPairs) return;
    const std::size_t equals = member.find('=');
    if (equals == std::string_view::npos) return;
    const std::string_view key = trimmed(member.substr(0, equals));
    const std::string_view value = trimmed(member.substr(equals + 1));
    if (!is_token(key) || !is_baggage_value(value)) return;
    ++num_pairs;
    const std::string decoded_value = form_decoded(value);
    put(baggage, std::string(trimmed(form_decoded(key))), std::string(trimmed(decoded_value)));
  });
  return baggage;
}

std::string format_baggage(const Baggage& baggage) {
  std::string text;
  std::size_t num_pairs = 0;
  for (const auto& [key, value] : baggage) {
    const std::string pair = form_encoded(key) + "=" + form_encoded(value);
    if (key.empty() || pair.size() > kMaxPairBytes || num_pairs == kMaxPairs) continue;
    if (text.size() + pair.size() + 1 > kMaxBaggageBytes) continue;
    if (!text.empty()) text += ',';
    text += pair;
    ++num_pairs;
  }
  return text;
}

}  // namespace pharos::lens
