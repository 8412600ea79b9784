#include "pharos/data/loader.h"

#include <string>

#include "pharos/base/error.h"

namespace pharos::data {
namespace {

SamplerOptions with_total(SamplerOptions options, const SampleDataset& dataset) {
  if (options.total_samples == 0) options.total_samples = dataset.length();
  PHAROS_CHECK(options.total_samples <= dataset.length(),
               "the dataset has only " + std::to_string(dataset.length()) + " samples");
  return options;
}

}  // namespace

MicrobatchSource::MicrobatchSource(const SampleDataset& dataset, SamplerOptions options)
    : dataset_(dataset), sampler_(with_total(options, dataset)) {}

Microbatch MicrobatchSource::get(std::int64_t consumed_samples, std::int64_t microbatch) const {
  Microbatch result;
  read(consumed_samples, microbatch, result);
  return result;
}

void MicrobatchSource::read(std::int64_t consumed_samples, std::int64_t microbatch, Microbatch& target) const {
  auto samples = sampler_.microbatch(consumed_samples, microbatch);
  if (!samples) {
    throw base::UserError(
        {.what = "There are no samples left to consume: the dataset has " +
                 std::to_string(sampler_.options().total_samples) + ", and microbatch " + std::to_string(microbatch) +
                 " after " + std::to_string(consumed_samples) + " is asked for.",
         .why = "dataset.dataloader_type = single reads every sample once, in whole microbatches of all ranks.",
         .fix = "Lower train.train_iters, or set dataset.dataloader_type=cyclic to go round again."});
  }
  target.sample_indices = std::move(*samples);
  target.rows = static_cast<std::int64_t>(target.sample_indices.size());
  target.seq_length = dataset_.seq_length();
  const auto size = static_cast<std::size_t>(target.rows * target.seq_length);
  for (auto* buffer : {&target.tokens, &target.labels, &target.position_ids, &target.segment_ids}) buffer->resize(size);
  target.loss_mask.resize(size);
  for (std::int64_t row = 0; row < target.rows; ++row) {
    const std::int64_t at = row * target.seq_length;
    dataset_.read(target.sample_indices[static_cast<std::size_t>(row)],
                  {target.tokens.data() + at, target.labels.data() + at, target.position_ids.data() + at,
                   target.segment_ids.data() + at, target.loss_mask.data() + at});
  }
}

}  // namespace pharos::data
