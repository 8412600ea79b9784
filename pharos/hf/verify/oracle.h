// The files that hf::verify compares with.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "pharos/checkpoint/safetensors.h"

namespace pharos::hf {

struct OracleStep {
  std::int64_t batch = 0;
  double loss = 0;       ///< before the step
  double grad_norm = 0;  ///< before clipping
};

/// trajectory.json: AdamW on the whole batch, step by step.
struct Trajectory {
  double learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0, clip_grad_norm = 0;
  std::vector<OracleStep> steps;
};

struct Oracle {
  checkpoint::SafetensorsSet tensors;
  at::Tensor input_ids, labels;              ///< int64 [batch, tokens]
  at::Tensor batch_input_ids, batch_labels;  ///< int64 [batches, batch, tokens]
  Trajectory trajectory;
};

/// UserError naming every missing or misshapen input, token ids outside [0, vocab_size), and a trajectory.json that is
/// neither beside `path` nor in `folder`, or not of the expected form.
Oracle read_oracle(const std::filesystem::path& path, const std::filesystem::path& folder, std::int64_t vocab_size);

}  // namespace pharos::hf
