// Weights of a Hugging Face folder into Parameters, each rank reading the slices it holds.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "pharos/checkpoint/safetensors.h"
#include "pharos/comm/mesh.h"
#include "pharos/hf/hf_names.h"
#include "pharos/tensor/parameter.h"

namespace pharos::hf {

/// UserError naming every missing, surplus and misshapen tensor at once, before memory is allocated: `parameters` may
/// be on the meta device. load_weights() checks the same.
void check_weights(const std::vector<tensor::Parameter*>& parameters, const std::filesystem::path& folder,
                   const comm::Mesh& mesh, std::int64_t rank);

/// Fills `parameters` (allocated, any device and floating type) from the safetensors files of `folder`, whose
/// config.json names the family. Vocabulary padding becomes zero. A table of learned positions may have fewer rows than
/// the stored one: it takes the first. Files in fp32, bf16 and fp16 are converted. UserError naming every missing,
/// surplus and misshapen tensor at once; a stored lm_head that differs from the embedding of a tied model is one of
/// them. Surplus tensors are only judged without pipeline parallelism, except for unknown names.
void load_weights(const std::vector<tensor::Parameter*>& parameters, const std::filesystem::path& folder,
                  const comm::Mesh& mesh, std::int64_t rank);

/// Whether the tensors of `set` carry the family's prefix ("transformer.", "model.").
bool has_prefix(const checkpoint::SafetensorsSet& set, const NameTable& table);

/// The part `slice` of a piece of `shape`, as the model holds it ([out, in], experts in front), from the tensors of
/// `set` whose names are `before` and then the location's.
at::Tensor read_piece(const checkpoint::SafetensorsSet& set, const std::string& before, const Location& location,
                      const std::vector<std::int64_t>& shape, const tensor::Slice& slice);

}  // namespace pharos::hf
