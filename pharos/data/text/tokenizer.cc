#include "pharos/data/text/tokenizer.h"

#include <charconv>

#include "pharos/base/error.h"

namespace pharos::data {
namespace {

[[noreturn]] void refuse_id(std::int64_t id, std::int64_t vocab_size) {
  throw base::UserError({.what = "Token " + std::to_string(id) + " is not in the vocabulary.",
                         .why = "Ids are at least 0 and below " + std::to_string(vocab_size) + ".",
                         .fix = "Use the tokenizer the tokens were made with."});
}

}  // namespace

void ByteTokenizer::encode(std::string_view text, std::vector<std::int64_t>& ids) const {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  ids.insert(ids.end(), bytes, bytes + text.size());
}

std::string ByteTokenizer::decode(std::span<const std::int64_t> ids) const {
  std::string text;
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= vocab_size()) refuse_id(id, vocab_size());
    if (id != kEndOfDocument) text += static_cast<char>(id);
  }
  return text;
}

std::string ByteTokenizer::identifiers_json() const { return R"({"class": "ByteTokenizer"})"; }

NullTokenizer::NullTokenizer(std::int64_t vocab_size, std::optional<std::int64_t> end_of_document)
    : vocab_size_(vocab_size), end_of_document_(end_of_document.value_or(vocab_size - 1)) {
  if (vocab_size < 1) {
    throw base::UserError({.what = "tokenizer.vocab_size = " + std::to_string(vocab_size) + " is not a vocabulary.",
                           .why = "The null tokenizer has no file to take its size from.",
                           .fix = "Give tokenizer.vocab_size, 1 or more."});
  }
  if (end_of_document_ < 0 || end_of_document_ >= vocab_size) {
    throw base::UserError(
        {.what = "tokenizer.null_tokenizer_eod_id = " + std::to_string(end_of_document_) + " is not in the vocabulary.",
         .why = "Ids are at least 0 and below tokenizer.vocab_size = " + std::to_string(vocab_size) + ".",
         .fix = "Leave it out to take the last id."});
  }
}

void NullTokenizer::encode(std::string_view text, std::vector<std::int64_t>& ids) const {
  std::size_t at = 0;
  while ((at = text.find_first_not_of(" \t\r\n", at)) != std::string_view::npos) {
    const std::size_t end = std::min(text.find_first_of(" \t\r\n", at), text.size());
    std::int64_t id = -1;
    const auto result = std::from_chars(text.data() + at, text.data() + end, id);
    if (result.ec != std::errc() || result.ptr != text.data() + end) {
      throw base::UserError({.what = "'" + std::string(text.substr(at, end - at)) + "' is not a token id.",
                             .why = "The null tokenizer reads ids as decimal numbers with blanks between them.",
                             .fix = "Give ids, for example `generate --prompt-ids 1,2,3`; text needs a model with the "
                                    "byte tokenizer."});
    }
    if (id < 0 || id >= vocab_size_) refuse_id(id, vocab_size_);
    ids.push_back(id);
    at = end;
  }
}

std::string NullTokenizer::decode(std::span<const std::int64_t> ids) const {
  std::string text;
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= vocab_size_) refuse_id(id, vocab_size_);
    if (id == end_of_document_) continue;
    if (!text.empty()) text += ' ';
    text += std::to_string(id);
  }
  return text;
}

std::string NullTokenizer::identifiers_json() const {
  return R"({"class": "NullTokenizer", "vocab_size": )" + std::to_string(vocab_size_) +
         ", \"eod\": " + std::to_string(end_of_document_) + "}";
}

}  // namespace pharos::data
