// Writes a .bin/.idx pair, token by token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pharos/base/file.h"
#include "pharos/data/indexed/index_format.h"

namespace pharos::data {

/// Tokens stream to a temporary .bin file; memory grows by 12 bytes a sequence. finish() writes the index and renames
/// both files into place; without it (an exception, say) nothing appears and the temporary files are removed. A killed
/// process can leave PREFIX.bin.tmp.PID behind; a pair cut between the two renames is refused on opening.
class IndexedDatasetWriter {
 public:
  IndexedDatasetWriter(std::string prefix, TokenType type);
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  /// Appends to the current sequence. A token that the element type cannot hold is a UserError. A sequence holds at
  /// most 2^31 - 1 tokens; what is beyond starts the next one.
  void add_tokens(std::span<const std::int64_t> tokens);
  /// Ends the current sequence, also an empty one.
  void end_sequence();
  /// Ends the current document (and its sequence, if it has tokens).
  void end_document();
  void finish();

  std::int64_t tokens_in_sequence() const { return tokens_in_sequence_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::int64_t num_sequences() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t num_documents() const { return static_cast<std::int64_t>(document_starts_.size()) - 1; }
  /// Of both files, after finish().
  std::int64_t output_bytes() const { return output_bytes_; }

 private:
  void flush();
  void write_index(const std::string& path) const;

  std::string prefix_;
  TokenType type_;
  std::string temporary_bin_;
  std::string temporary_index_;
  std::unique_ptr<base::OutputFile> bin_;
  std::vector<std::byte> buffer_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> document_starts_ = {0};
  std::int64_t tokens_in_sequence_ = 0;
  std::int64_t num_tokens_ = 0;
  std::int64_t output_bytes_ = 0;
};

}  // namespace pharos::data
