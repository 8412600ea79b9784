// A check for options that are whole numbers: the command-line library clamps what does not fit into 64 bits.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>

namespace pharos::cli {

/// Refuses text that is no decimal whole number from `least` to `most`.
template <typename T = std::int64_t>
CLI::Validator whole_number(T least = std::numeric_limits<T>::min(), T most = std::numeric_limits<T>::max()) {
  return {[least, most](const std::string& text) -> std::string {
            T number = 0;
            const char* const end = text.data() + text.size();
            const char* const begin = text.starts_with('+') ? text.data() + 1 : text.data();
            const auto [parsed, error] = std::from_chars(begin, end, number);
            if (error == std::errc() && parsed == end && number >= least && number <= most) return {};
            return "'" + text + "' is not a whole number from " + std::to_string(least) + " to " + std::to_string(most);
          },
          ""};
}

}  // namespace pharos::cli
