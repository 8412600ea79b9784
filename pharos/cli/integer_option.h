// A check for options that are whole numbers: the command-line library clamps what does not fit into 64 bits.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>

namespace pharos::cli {

/// Refuses text that is no whole number of 64 bits.
inline CLI::Validator fits_64_bits() {
  return {[](const std::string& text) -> std::string {
            std::int64_t number = 0;
            const char* const end = text.data() + text.size();
            const char* const begin = text.starts_with('+') ? text.data() + 1 : text.data();
            const auto [parsed, error] = std::from_chars(begin, end, number);
            if (error == std::errc() && parsed == end) return {};
            return "'" + text + "' is not a whole number of at most 64 bits";
          },
          ""};
}

}  // namespace pharos::cli
