// `pharos generate RUN|CHECKPOINT|HF_FOLDER --prompt TEXT`: text from a trained model.
#pragma once

#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace pharos::cli {

void add_generate_command(CLI::App& app);

/// Bytes that arrive in arbitrary parts, given on as whole UTF-8 characters. What is not UTF-8 becomes U+FFFD, one for
/// each maximal well-formed beginning of a character (Unicode 15, section 3.9).
class Utf8Stream {
 public:
  /// The characters that `bytes` completes; an unfinished one is held back.
  std::string push(std::string_view bytes);
  /// What is still held back, as U+FFFD.
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace pharos::cli
