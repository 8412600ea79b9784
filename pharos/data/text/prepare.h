// Text files to a tokenized dataset.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "pharos/data/indexed/index_format.h"
#include "pharos/data/text/tokenizer.h"

namespace pharos::data {

/// What is one document.
enum class DocumentMode {
  kFile,       ///< the whole file
  kBlankLine,  ///< a paragraph: lines between blank lines, without the newline at its end
  kLine,       ///< a line that is not empty, without its newline
};

struct PrepareProgress {
  std::int64_t input_bytes = 0;  ///< read so far, of all files
  std::int64_t total_bytes = 0;  ///< of all files
  std::int64_t num_documents = 0;
  std::int64_t num_tokens = 0;
};

struct PrepareOptions {
  DocumentMode mode = DocumentMode::kFile;
  /// Set: input is one JSON object a line and this key holds the text, a string or a list of strings. Of a list every
  /// string that is not empty becomes a sequence of the document. `mode` has no meaning then.
  std::optional<std::string> jsonl_key = std::nullopt;
  bool append_end_of_document = true;
  /// kFile only: a document is stored as sequences of at most this many tokens, cut after a newline where there is one
  /// in the second half. The sequence is what splits and shuffles move, so one file can have a validation part. The end
  /// of the document comes on top. 0: one sequence.
  std::int64_t sequence_tokens = 8192;
  std::optional<TokenType> token_type = std::nullopt;  ///< unset: by the vocabulary
  /// Called about twice a second and at the end.
  std::function<void(const PrepareProgress&)> progress = nullptr;
};

struct PrepareSummary {
  std::int64_t num_documents = 0;
  std::int64_t num_sequences = 0;
  std::int64_t num_tokens = 0;
  std::int64_t input_bytes = 0;
  std::int64_t output_bytes = 0;
  std::int64_t duration_ns = 0;
  TokenType token_type = TokenType::kUint16;
};

/// Writes PREFIX.bin and PREFIX.idx from the files, in their order. No file is held in memory: at most a line, a
/// paragraph or a block of 1 MiB is. Errors (UserError with file and line): a file without any text, a line that is not
/// JSON, no such key.
PrepareSummary prepare(const std::vector<std::filesystem::path>& inputs, const std::string& output_prefix,
                       const Tokenizer& tokenizer, const PrepareOptions& options);

}  // namespace pharos::data
