#include "pharos/lens/variables/scalar.h"

#include <locale.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>

namespace pharos::lens {
namespace {

constexpr std::string_view kBlanks = " \t\n\v\f\r\x1c\x1d\x1e\x1f";

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

/// Takes digits with single underscores between them from the front of `text` and appends the digits to `digits`.
bool take_digits(std::string_view& text, std::string& digits) {
  if (text.empty() || !is_digit(text.front())) return false;
  while (!text.empty()) {
    if (text.front() == '_') {
      if (text.size() < 2 || !is_digit(text[1])) return false;
      text.remove_prefix(1);
    }
    if (!is_digit(text.front())) break;
    digits += text.front();
    text.remove_prefix(1);
  }
  return true;
}

bool take_sign(std::string_view& text) {
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  return is_negative;
}

/// Independent of the process's locale, in which the decimal point may be a comma.
double convert_decimal(const std::string& text) {
  static const locale_t classic = newlocale(LC_ALL_MASK, "C", nullptr);
  return strtod_l(text.c_str(), nullptr, classic);
}

/// Length of the valid UTF-8 sequence at the start of `text`, 0 if there is none (RFC 3629: no surrogates, nothing
/// overlong, nothing above U+10FFFF).
std::size_t utf8_sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  const bool is_refused = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                          (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return is_refused ? 0 : length;
}

int hexadecimal_digit(char letter) {
  if (is_digit(letter)) return letter - '0';
  if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
  if (letter >= 'A' && letter <= 'F') return letter - 'A' + 10;
  return -1;
}

}  // namespace

std::string_view trim_blanks(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& letter : result) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return result;
}

std::optional<bool> parse_boolean(std::string_view text) {
  const std::string word = lower_case(trim_blanks(text));
  if (word == "1" || word == "true" || word == "yes" || word == "on") return true;
  if (word == "0" || word == "false" || word == "no" || word == "off") return false;
  return std::nullopt;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  text = trim_blanks(text);
  std::string digits = take_sign(text) ? "-" : "";
  if (!take_digits(text, digits) || !text.empty()) return std::nullopt;
  std::int64_t value = 0;
  const auto [stop, status] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  static_cast<void>(stop);
  if (status != std::errc()) return std::nullopt;
  return value;
}

std::optional<double> parse_number(std::string_view text) {
  text = trim_blanks(text);
  const bool is_negative = take_sign(text);
  const double sign = is_negative ? -1.0 : 1.0;
  const std::string word = lower_case(text);
  if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (word == "inf" || word == "infinity") return sign * std::numeric_limits<double>::infinity();

  std::string decimal;
  const bool has_whole = take_digits(text, decimal);
  if (!has_whole && !decimal.empty()) return std::nullopt;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    decimal += '.';
    const std::size_t before = decimal.size();
    if (!take_digits(text, decimal) && (!has_whole || decimal.size() != before)) return std::nullopt;
  } else if (!has_whole) {
    return std::nullopt;
  }
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    decimal += take_sign(text) ? "e-" : "e";
    if (!take_digits(text, decimal)) return std::nullopt;
  }
  if (!text.empty()) return std::nullopt;
  return sign * convert_decimal(decimal);
}

std::string decode_percent(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = i + 2 < text.size() ? hexadecimal_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hexadecimal_digit(text[i + 2]) : -1;
    if (text[i] == '%' && high >= 0 && low >= 0) {
      decoded += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return make_valid_utf8(decoded);
}

std::string make_valid_utf8(std::string_view text) {
  std::string valid;
  while (!text.empty()) {
    const std::size_t length = utf8_sequence_length(text);
    valid += length == 0 ? std::string_view("\xef\xbf\xbd") : text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return valid;
}

std::string shown(std::string_view text) {
  constexpr std::size_t kMaxBytes = 100;
  std::size_t size = std::min(text.size(), kMaxBytes);
  if (size < text.size()) {  // not inside a character
    while (size > kMaxBytes - 4 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  }
  std::string line = make_valid_utf8(text.substr(0, size));
  for (char& letter : line) {
    if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f) letter = '?';
  }
  return size < text.size() ? line + "…" : line;
}

}  // namespace pharos::lens
