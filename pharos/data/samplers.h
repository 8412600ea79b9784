// Which samples a data-parallel rank reads next: Megatron's samplers as pure functions of the samples consumed so far.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace pharos::data {

enum class SamplerKind {
  kSingle,  ///< in order, once
  kCyclic,  ///< shuffled anew every epoch, without end
};

/// "single" or "cyclic" (dataset.dataloader_type). "batch" and "external" are UserErrors.
SamplerKind parse_sampler_kind(const std::string& text);

struct SamplerOptions {
  SamplerKind kind = SamplerKind::kSingle;
  std::int64_t total_samples = 0;
  std::int64_t micro_batch_size = 1;  ///< samples of one microbatch on one rank
  std::int64_t data_parallel_rank = 0;
  std::int64_t data_parallel_size = 1;
  bool drop_last = true;      ///< kSingle: leave out the last samples that do not fill a microbatch on every rank
  bool data_sharding = true;  ///< kCyclic: a rank shuffles only its own share of the samples
};

class Sampler {
 public:
  /// UserError if sizes are not positive or, for kCyclic, the samples do not fill one microbatch on every rank.
  explicit Sampler(const SamplerOptions& options);

  /// Sample numbers of this rank's microbatch `microbatch` (from 0), counted from `consumed_samples` of all ranks
  /// together. Depends on nothing else. kSingle: nullopt when the samples are used up; fewer than micro_batch_size
  /// numbers, even none, in the last microbatch without drop_last. kCyclic: UserError if consumed_samples lies within a
  /// microbatch of all ranks.
  std::optional<std::vector<std::int64_t>> microbatch(std::int64_t consumed_samples, std::int64_t microbatch) const;

  const SamplerOptions& options() const { return options_; }

 private:
  std::optional<std::vector<std::int64_t>> single(std::int64_t position) const;
  std::vector<std::int64_t> cyclic(std::int64_t position) const;

  SamplerOptions options_;
  std::int64_t samples_per_microbatch_;  ///< of all ranks
  // The permutation of the epoch read last, so that it is not drawn again for every microbatch.
  mutable std::mutex mutex_;
  mutable std::int64_t permuted_epoch_ = -1;
  mutable std::vector<std::int64_t> permutation_;
};

}  // namespace pharos::data
