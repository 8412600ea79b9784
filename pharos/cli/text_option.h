// A check for options that name something: what is empty names nothing, though a script may give it unknowingly.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace pharos::cli {

/// Refuses empty text.
inline CLI::Validator filled_text() {
  return {[](const std::string& text) -> std::string { return text.empty() ? "the value is empty" : ""; }, ""};
}

/// Refuses empty text and control characters, line breaks among them.
inline CLI::Validator filled_line() {
  return {[](const std::string& text) -> std::string {
            if (text.empty()) return "the value is empty";
            for (const char letter : text) {
              if (static_cast<unsigned char>(letter) < ' ' || letter == '\x7f')
                return "the value has a control character";
            }
            return {};
          },
          ""};
}

}  // namespace pharos::cli
