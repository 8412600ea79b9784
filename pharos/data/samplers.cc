#include "pharos/data/samplers.h"

#include <algorithm>

#include "pharos/base/error.h"
#include "pharos/data/index/random_streams.h"

namespace pharos::data {

SamplerKind parse_sampler_kind(const std::string& text) {
  if (text == "single") return SamplerKind::kSingle;
  if (text == "cyclic") return SamplerKind::kCyclic;
  throw base::UserError({.what = "dataset.dataloader_type = " + text + " is not supported.",
                         .why = text == "batch" ? "Whole-batch sampling is for fine-tuning on conversations." : "",
                         .fix = "Use single (in order, once) or cyclic (shuffled every epoch)."});
}

Sampler::Sampler(const SamplerOptions& options)
    : options_(options), samples_per_microbatch_(options.micro_batch_size * options.data_parallel_size) {
  if (options.total_samples < 1 || options.micro_batch_size < 1 || options.data_parallel_size < 1 ||
      options.data_parallel_rank < 0 || options.data_parallel_rank >= options.data_parallel_size) {
    throw base::UserError({.what = "The sampler cannot share out " + std::to_string(options.total_samples) +
                                   " samples: micro batch size " + std::to_string(options.micro_batch_size) +
                                   ", data-parallel rank " + std::to_string(options.data_parallel_rank) + " of " +
                                   std::to_string(options.data_parallel_size) + ".",
                           .fix = "Samples, micro batch size and data-parallel size are 1 or more."});
  }
  if (options.kind == SamplerKind::kCyclic && options.total_samples < samples_per_microbatch_) {
    throw base::UserError({.what = "The dataset has " + std::to_string(options.total_samples) +
                                   " samples, fewer than one microbatch of every rank needs (" +
                                   std::to_string(samples_per_microbatch_) + ").",
                           .fix = "Use more data, a smaller train.micro_batch_size or fewer ranks."});
  }
}

std::optional<std::vector<std::int64_t>> Sampler::microbatch(std::int64_t consumed_samples,
                                                             std::int64_t microbatch) const {
  PHAROS_CHECK(consumed_samples >= 0 && microbatch >= 0, "consumed " + std::to_string(consumed_samples));
  if (options_.kind == SamplerKind::kSingle) return single(consumed_samples + microbatch * samples_per_microbatch_);
  const std::int64_t active = options_.total_samples - options_.total_samples % samples_per_microbatch_;
  if (consumed_samples % active % samples_per_microbatch_ != 0) {
    throw base::UserError({.what = std::to_string(consumed_samples) + " consumed samples do not end a microbatch.",
                           .why = "A microbatch of all ranks has " + std::to_string(samples_per_microbatch_) +
                                  " samples; the cyclic sampler goes on only from the end of one.",
                           .fix = "Resume with the micro batch size and number of ranks of before."});
  }
  return cyclic(consumed_samples + microbatch * samples_per_microbatch_);
}

std::optional<std::vector<std::int64_t>> Sampler::single(std::int64_t position) const {
  const std::int64_t available = std::min(options_.total_samples - position, samples_per_microbatch_);
  if (available <= 0 || (options_.drop_last && available < samples_per_microbatch_)) return std::nullopt;
  std::vector<std::int64_t> samples;
  const std::int64_t first = options_.data_parallel_rank * options_.micro_batch_size;
  for (std::int64_t i = first; i < std::min(first + options_.micro_batch_size, available); ++i)
    samples.push_back(position + i);
  return samples;
}

std::vector<std::int64_t> Sampler::cyclic(std::int64_t position) const {
  const auto [total, size] = std::pair(options_.total_samples, options_.micro_batch_size);
  const std::int64_t active = total - total % samples_per_microbatch_;
  const std::int64_t epoch = position / active;
  const std::int64_t in_epoch = position % active;
  const std::int64_t bucket = total / samples_per_microbatch_ * size;  // samples a rank owns with data_sharding

  const std::lock_guard lock(mutex_);
  if (epoch != permuted_epoch_) {
    permutation_ =
        torch_randperm(options_.data_sharding ? bucket : total / size * size, static_cast<std::uint64_t>(epoch));
    permuted_epoch_ = epoch;
  }
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < size; ++i) {
    if (options_.data_sharding) {
      const std::int64_t at = in_epoch / options_.data_parallel_size + i;
      samples.push_back(options_.data_parallel_rank * bucket + permutation_[static_cast<std::size_t>(at)]);
    } else {
      const std::int64_t at = in_epoch + options_.data_parallel_rank + i * options_.data_parallel_size;
      samples.push_back(permutation_[static_cast<std::size_t>(at)]);
    }
  }
  return samples;
}

}  // namespace pharos::data
