// The order of a GPT dataset's samples, bit for bit as Megatron Core builds it: how often each sequence is read
// (document index), where each sample starts (sample index), and in which order samples are drawn (shuffle index).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "pharos/data/index/integer_array.h"

namespace pharos::data {

struct GptIndexRequest {
  std::pair<std::int64_t, std::int64_t> sequences;         ///< [first, second) of the source
  std::function<std::int64_t(std::int64_t)> length;        ///< tokens of a sequence of the source
  std::optional<std::int64_t> num_samples = std::nullopt;  ///< at least this many; unset: one epoch
  std::int64_t seq_length = 0;
  std::uint32_t random_seed = 0;
  bool extra_token = true;    ///< a sample has seq_length + 1 tokens and shares its last one with the next
  bool keep_partial = false;  ///< a last sample that is not full counts too
};

/// How many epochs and samples a request comes to.
struct EpochPlan {
  std::int64_t tokens_per_epoch = 0;
  std::int64_t num_epochs = 1;
  std::int64_t num_samples = 0;                ///< that the epochs hold
  bool separate_last_epoch = false;            ///< the last epoch is shuffled by itself, as only little of it is needed
  std::int64_t samples_before_last_epoch = 0;  ///< if separate_last_epoch
};

/// Smallest number of epochs e >= 1 with e * tokens >= num_samples * seq_length + extra. UserError if the product
/// leaves 63 bits. With keep_partial the count goes through a 32-bit float, as Megatron's does; past 2^24 tokens it can
/// be off by a sample.
EpochPlan plan_epochs(std::int64_t tokens_per_epoch, const GptIndexRequest& request);

struct GptIndex {
  IntegerArray document_index;  ///< int32 [epochs * sequences]: sequence numbers
  IntegerArray
      sample_index;  ///< int32 or int64 [samples + 1, 2]: position in document_index, token within that sequence
  IntegerArray shuffle_index;  ///< uint32 or int64 [samples]
};

GptIndex build_gpt_index(const GptIndexRequest& request, const EpochPlan& plan);

/// Empty if `index` is one that build_gpt_index could have made: types and sizes right, every sequence as often as
/// there are epochs, every sample where the one before it ends, every sample drawn once. Else what is wrong. Linear in
/// its size.
std::string check_gpt_index(const GptIndex& index, const GptIndexRequest& request, const EpochPlan& plan);

}  // namespace pharos::data
