#include "pharos/train/data/data_feed.h"

#include <ATen/ATen.h>

#include <array>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/data/datasets.h"
#include "pharos/data/loader.h"
#include "pharos/train/make_tokenizer.h"

namespace pharos::train {
namespace {

data::DataSources sources_of(const config::DatasetConfig& dataset) {
  return {.blend = dataset.blend.empty() ? dataset.data_path : dataset.blend,
          .blend_per_split = dataset.blend_per_split,
          .split = dataset.split};
}

/// Samples each split must give (bridge-config.md 9.3).
data::SampleCounts wanted_samples(const config::RunConfig& config, std::int64_t data_size) {
  const auto& validation = config.validation;
  const std::int64_t per_evaluation = validation.eval_iters * config::eval_global_batch_size_or_default(config);
  const std::int64_t iterations = config::total_train_iterations(config, data_size);
  const std::int64_t interval = validation.eval_interval.value_or(0);
  const std::int64_t train =
      validation.skip_train ? 0 : config.train.train_samples.value_or(config::total_train_samples(config, data_size));
  // One evaluation more than fits between the steps: the one on the whole, after the last step.
  return {train, interval > 0 ? (iterations / interval + 1) * per_evaluation : 0, per_evaluation};
}

data::GptDatasetOptions dataset_options(const config::RunConfig& config, const data::Tokenizer& tokenizer) {
  const auto& dataset = config.dataset;
  data::GptDatasetOptions options;
  options.seq_length = *dataset.seq_length;
  options.random_seed = dataset.random_seed;
  options.reset_position_ids = dataset.reset_position_ids;
  options.reset_attention_mask = dataset.reset_attention_mask;
  options.eod_mask_loss = dataset.eod_mask_loss;
  options.drop_last_partial_validation_sequence = dataset.drop_last_partial_validation_sequence;
  options.add_extra_token_to_sequence = dataset.add_extra_token_to_sequence;
  options.mid_level_dataset_surplus = dataset.mid_level_dataset_surplus;
  options.path_to_cache = dataset.path_to_cache;
  options.set_tokenizer(tokenizer);
  options.vocab_size = *config.model.vocab_size;
  return options;
}

data::SamplerOptions sampler_options(const config::RunConfig& config, DataSplit split, std::int64_t data_rank,
                                     std::int64_t data_size) {
  data::SamplerOptions options;
  const bool cyclic =
      split == DataSplit::kValidation || config.dataset.dataloader_type == config::DataloaderType::kCyclic;
  options.kind = cyclic ? data::SamplerKind::kCyclic : data::SamplerKind::kSingle;
  options.micro_batch_size =
      split == DataSplit::kTrain ? *config.train.micro_batch_size : config::eval_micro_batch_size_or_default(config);
  options.data_parallel_rank = data_rank;
  options.data_parallel_size = data_size;
  options.data_sharding = config.dataset.data_sharding;
  return options;
}

template <typename T>
at::Tensor to_tensor(const std::vector<T>& values, at::IntArrayRef shape, at::ScalarType type, at::Device device) {
  // The loader's buffers are its own, so the values are copied.
  return at::from_blob(const_cast<T*>(values.data()), shape, type).clone().to(device);
}

}  // namespace

std::int64_t num_training_samples(const config::RunConfig& config, std::int64_t data_size) {
  return wanted_samples(config, data_size)[0].value_or(0);
}

struct DataFeed::State {
  data::DatasetSet datasets;
  std::array<std::unique_ptr<data::MicrobatchSource>, 3> sources;
  bool reset_positions = false;
  bool reset_attention = false;
  std::int64_t data_rank = 0, data_size = 1;
};

DataFeed::DataFeed(const config::RunConfig& config, std::int64_t data_rank, std::int64_t data_size)
    : state_(std::make_unique<State>()) {
  const auto tokenizer = make_tokenizer(config.tokenizer);
  state_->datasets = data::build_datasets(sources_of(config.dataset), wanted_samples(config, data_size),
                                          dataset_options(config, *tokenizer));
  for (const DataSplit split : {DataSplit::kTrain, DataSplit::kValidation, DataSplit::kTest}) {
    const auto index = static_cast<std::size_t>(split);
    if (state_->datasets[index] == nullptr) continue;
    state_->sources[index] = std::make_unique<data::MicrobatchSource>(
        *state_->datasets[index], sampler_options(config, split, data_rank, data_size));
  }
  if (!config.validation.skip_train && !has(DataSplit::kTrain)) {
    throw base::UserError({.what = "The training split has no data.",
                           .where = "dataset.split = " + config.dataset.split.value_or("(default)"),
                           .fix = "Give the first number of dataset.split a share, for example dataset.split=90,5,5."});
  }
  state_->reset_positions = config.dataset.reset_position_ids;
  state_->reset_attention = config.dataset.reset_attention_mask;
  state_->data_rank = data_rank;
  state_->data_size = data_size;
}

DataFeed::~DataFeed() = default;

bool DataFeed::has(DataSplit split) const { return state_->sources[static_cast<std::size_t>(split)] != nullptr; }

std::int64_t DataFeed::num_samples(DataSplit split) const {
  return has(split) ? state_->datasets[static_cast<std::size_t>(split)]->length() : 0;
}

Microbatch DataFeed::microbatch(DataSplit split, std::int64_t consumed_samples, int index, at::Device device) const {
  const auto& source = *state_->sources[static_cast<std::size_t>(split)];
  const data::Microbatch read = source.get(consumed_samples, index);
  const std::array<std::int64_t, 2> shape{read.rows, read.seq_length};
  Microbatch batch;
  batch.tokens = to_tensor(read.tokens, shape, at::kLong, device);
  batch.labels = to_tensor(read.labels, shape, at::kLong, device);
  batch.loss_mask = to_tensor(read.loss_mask, shape, at::kFloat, device);
  batch.positions = state_->reset_positions
                        ? to_tensor(read.position_ids, shape, at::kLong, device)
                        : at::arange(read.seq_length, at::TensorOptions().dtype(at::kLong).device(device));
  batch.num_loss_tokens = batch.loss_mask.sum();
  if (state_->reset_attention) batch.segments = to_tensor(read.segment_ids, shape, at::kLong, device);
  const std::int64_t rows = source.sampler().options().micro_batch_size;
  batch.first_sample = (index * state_->data_size + state_->data_rank) * rows;
  return batch;
}

}  // namespace pharos::train
