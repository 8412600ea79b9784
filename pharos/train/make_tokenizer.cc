#include "pharos/train/make_tokenizer.h"

#include "pharos/base/error.h"

namespace pharos::train {

std::unique_ptr<data::Tokenizer> make_tokenizer(const config::TokenizerConfig& config) {
  switch (config.tokenizer_type.value_or(config::TokenizerType::kByteLevel)) {
    case config::TokenizerType::kByteLevel:
      return std::make_unique<data::ByteTokenizer>();
    case config::TokenizerType::kNull:
      if (!config.vocab_size) {
        throw base::UserError({.what = "tokenizer.vocab_size is not set.",
                               .where = "tokenizer.tokenizer_type = NullTokenizer",
                               .why = "A NullTokenizer has no text and so no vocabulary of its own.",
                               .fix = "Give the number of token ids, for example tokenizer.vocab_size=32000."});
      }
      return std::make_unique<data::NullTokenizer>(*config.vocab_size, config.null_tokenizer_eod_id);
    default:
      throw base::UserError({.what = "This release has the tokenizers ByteLevelTokenizer and NullTokenizer only.",
                             .where = "tokenizer.tokenizer_type",
                             .fix = "Prepare the data with one of them, or train on the token ids of any other with "
                                    "tokenizer.tokenizer_type=NullTokenizer tokenizer.vocab_size=N."});
  }
}

}  // namespace pharos::train
