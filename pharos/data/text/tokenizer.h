// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::data {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the ids of `text`. No end of document is added.
  virtual void encode(std::string_view text, std::vector<std::int64_t>& ids) const = 0;
  /// Text of `ids`; the end of a document is left out. An id outside the vocabulary is a UserError.
  virtual std::string decode(std::span<const std::int64_t> ids) const = 0;
  /// Ids are below this.
  virtual std::int64_t vocab_size() const = 0;
  /// Id that ends a document.
  virtual std::int64_t end_of_document() const = 0;
  /// Id that fills short samples, if the vocabulary has one.
  virtual std::optional<std::int64_t> pad() const { return std::nullopt; }
  /// A JSON object that tells tokenizers apart; part of the names of index caches.
  virtual std::string identifiers_json() const = 0;

  std::vector<std::int64_t> encode(std::string_view text) const {
    std::vector<std::int64_t> ids;
    encode(text, ids);
    return ids;
  }
};

/// A token is a byte (0 to 255); 256 ends a document. Any byte string is text, also what is not valid UTF-8.
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr std::int64_t kEndOfDocument = 256;

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int64_t>& ids) const override;
  std::string decode(std::span<const std::int64_t> ids) const override;
  std::int64_t vocab_size() const override { return 257; }
  std::int64_t end_of_document() const override { return kEndOfDocument; }
  std::string identifiers_json() const override;
};

/// No text at all: ids written as decimal numbers with blanks between them (Megatron's NullTokenizer). Without
/// `end_of_document` the last id of the vocabulary ends a document.
class NullTokenizer : public Tokenizer {
 public:
  explicit NullTokenizer(std::int64_t vocab_size, std::optional<std::int64_t> end_of_document = std::nullopt);

  using Tokenizer::encode;
  /// UserError on a word that is not a number below vocab_size().
  void encode(std::string_view text, std::vector<std::int64_t>& ids) const override;
  std::string decode(std::span<const std::int64_t> ids) const override;
  std::int64_t vocab_size() const override { return vocab_size_; }
  std::int64_t end_of_document() const override { return end_of_document_; }
  std::string identifiers_json() const override;

 private:
  std::int64_t vocab_size_;
  std::int64_t end_of_document_;
};

}  // namespace pharos::data
