#include "pharos/optim/parallel/sharding.h"

#include <algorithm>

namespace pharos::optim {
namespace {

constexpr std::int64_t kDefaultBucketSize = 40'000'000;
constexpr std::int64_t kBucketSizePerRank = 1'000'000;

}  // namespace

DataParallelOptions data_parallel_options(const config::RunConfig& config) {
  const config::DdpConfig& ddp = config.ddp;
  DataParallelOptions options;
  options.strategy = ddp.data_parallel_sharding_strategy;
  const bool distributed_optimizer = ddp.use_distributed_optimizer || config.optimizer.use_distributed_optimizer;
  if (options.strategy == config::ShardingStrategy::kNoShard && distributed_optimizer) {
    options.strategy = config::ShardingStrategy::kOptim;
  }
  options.overlap_grad_reduce = ddp.overlap_grad_reduce;
  options.overlap_param_gather = ddp.overlap_param_gather;
  options.average_in_collective = ddp.average_in_collective;
  options.reduce_in_fp32 = ddp.grad_reduce_in_fp32;
  options.averages = !config.model.calculate_per_token_loss;
  options.bucket_size = ddp.bucket_size;
  options.num_buckets = ddp.num_buckets;
  return options;
}

std::vector<tensor::Parameter*> all_parameters(const ModelChunks& chunks) {
  std::vector<tensor::Parameter*> all;
  for (const auto& chunk : chunks) all.insert(all.end(), chunk.begin(), chunk.end());
  return all;
}

ModelChunks trainable_parameters(const ModelChunks& chunks) {
  ModelChunks trainable = chunks;
  for (auto& chunk : trainable) {
    std::erase_if(chunk, [](const tensor::Parameter* parameter) { return !parameter->trainable; });
  }
  return trainable;
}

FlatLayout data_parallel_layout(const ModelChunks& chunks, const DataParallelOptions& options,
                                std::int64_t data_parallel_size, std::int64_t expert_data_parallel_size) {
  const std::vector<tensor::Parameter*> parameters = all_parameters(chunks);
  LayoutOptions layout;
  std::size_t begin = 0;
  for (const auto& chunk : chunks) {
    layout.chunks.push_back(begin);
    begin += chunk.size();
  }
  if (shards_states(options.strategy)) {
    layout.num_shards = data_parallel_size;
    layout.num_expert_shards = expert_data_parallel_size;
  }
  if (options.bucket_size) {
    layout.bucket_size = *options.bucket_size;
  } else if (options.num_buckets) {
    const std::int64_t num_elements = make_layout(parameters, {}).num_elements;
    layout.bucket_size = std::max<std::int64_t>(1, (num_elements + *options.num_buckets - 1) / *options.num_buckets);
  } else if (shards_gradients(options.strategy)) {
    layout.along_layers = true;
  } else if (options.overlap_grad_reduce) {
    layout.bucket_size = std::max(kDefaultBucketSize, kBucketSizePerRank * data_parallel_size);
  }
  return make_layout(parameters, layout);
}

}  // namespace pharos::optim
