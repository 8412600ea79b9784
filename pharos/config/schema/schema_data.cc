// Sections dataset and tokenizer.
#include "pharos/config/limits.h"
#include "pharos/config/schema/schema_builder.h"

namespace pharos::config {
namespace {

/// A split may be written as a list: [90, 5, 5] is "90,5,5".
std::optional<Value> split_text(const Value& value) {
  if (!value.is_list()) return std::nullopt;
  std::string text;
  for (const Value& element : value.list) {
    if (!text.empty()) text += ',';
    text += to_message_text(element);
  }
  return Value::of_string(text);
}

void declare_dataset(std::vector<Field>& fields) {
  SectionBuilder dataset(fields, "dataset", &RunConfig::dataset);
  using C = DatasetConfig;
  dataset.field("seq_length", &C::seq_length, "tokens of one sample; alias sequence_length")
      .unit("tokens")
      .min(1)
      .max(kMostTokens)
      .required();
  dataset.field("random_seed", &C::random_seed, "seed of the shuffles").min(0).max(4294967295.0);
  dataset.field("data_path", &C::data_path,
                "prefix of .bin/.idx files, or [weight, prefix, weight, prefix, …]; empty: mock data");
  dataset.field("blend", &C::blend, "as data_path; excludes it and blend_per_split");
  dataset.field("blend_per_split", &C::blend_per_split, "three blends: training, validation, test");
  dataset.field("split", &C::split, "shares of training, validation and test, such as \"9999,8,2\" or [90,5,5]")
      .normalized_by(&split_text);
  dataset.field("path_to_cache", &C::path_to_cache, "folder of index caches; unset: <prefix>/cache/GPTDataset_indices");
  dataset.field("mmap_bin_files", &C::mmap_bin_files, "map the .bin files; Pharos always does").hint();
  dataset.field("num_dataset_builder_threads", &C::num_dataset_builder_threads, "threads that build indices")
      .min(1)
      .hint();
  dataset
      .field("mid_level_dataset_surplus", &C::mid_level_dataset_surplus,
             "how many more samples a part of a blend prepares")
      .min(0);
  dataset.field("fast_cache_load", &C::fast_cache_load, "trust existing caches without checks").hint();
  dataset.field("defer_npy_index_mmap", &C::defer_npy_index_mmap, "map index caches on first use").hint();
  dataset.field("reset_position_ids", &C::reset_position_ids, "positions start again after an end of document");
  dataset.field("reset_attention_mask", &C::reset_attention_mask, "no attention across an end of document");
  dataset.field("eod_mask_loss", &C::eod_mask_loss, "no loss where the input is an end of document");
  dataset.field("create_attention_mask", &C::create_attention_mask, "hand out a mask; causal kernels need none").hint();
  dataset
      .field("skip_getting_attention_mask_from_dataset", &C::skip_getting_attention_mask_from_dataset,
             "do not fetch that mask")
      .hint();
  dataset.field("drop_last_partial_validation_sequence", &C::drop_last_partial_validation_sequence,
                "leave out an incomplete last sample");
  dataset.field("add_extra_token_to_sequence", &C::add_extra_token_to_sequence,
                "read one token more, so that labels are complete");
  dataset.field("allow_ambiguous_pad_tokens", &C::allow_ambiguous_pad_tokens, "accept a pad token that is a real token")
      .no_effect();
  dataset.field("inter_document_masking", &C::inter_document_masking, "mask attention between documents of a sample")
      .later("inter-document masking");
  dataset.field("dataloader_type", &C::dataloader_type, "order of samples");
  dataset.field("num_workers", &C::num_workers, "loader processes; Pharos reads mapped files and needs none")
      .min(0)
      .hint();
  dataset.field("data_sharding", &C::data_sharding, "cyclic order: shuffle within each rank's own bucket");
  dataset.field("pin_memory", &C::pin_memory, "page-locked batches").hint();
  dataset.field("drop_last", &C::drop_last, "drop an incomplete last batch").hint();
  dataset.field("persistent_workers", &C::persistent_workers, "keep loader processes").hint();
}

}  // namespace

void declare_data(std::vector<Field>& fields) {
  declare_dataset(fields);
  SectionBuilder tokenizer(fields, "tokenizer", &RunConfig::tokenizer);
  using C = TokenizerConfig;
  tokenizer.field("tokenizer_type", &C::tokenizer_type, "kind of tokenizer");
  tokenizer.field("tokenizer_model", &C::tokenizer_model, "folder or file of the tokenizer");
  tokenizer.field("vocab_file", &C::vocab_file, "GPT2BPETokenizer: vocab.json");
  tokenizer.field("merge_file", &C::merge_file, "GPT2BPETokenizer: merges.txt");
  tokenizer.field("vocab_size", &C::vocab_size, "NullTokenizer: its size (required); TikTokenizer: its cap")
      .unit("tokens")
      .min(1)
      .max(kMostVocabulary);
  tokenizer
      .field("null_tokenizer_eod_id", &C::null_tokenizer_eod_id,
             "NullTokenizer: end of document; unset: vocab_size − 1")
      .min(0);
  tokenizer
      .field("make_vocab_size_divisible_by", &C::make_vocab_size_divisible_by, "neutral; padding belongs to the model")
      .min(1)
      .hint();
  tokenizer.field("use_tokenizer_vocab_size", &C::use_tokenizer_vocab_size,
                  "the tokenizer's size replaces model.vocab_size");
  tokenizer.field("hf_tokenizer_kwargs", &C::hf_tokenizer_kwargs, "options of the Hugging Face tokenizer").no_effect();
}

}  // namespace pharos::config
