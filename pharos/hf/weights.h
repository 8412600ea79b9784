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
/// surplus and misshapen tensor at once, and one for values beyond the range of fp16; a stored lm_head that differs
/// from the embedding of a tied model is one of them. Surplus tensors are only judged without pipeline parallelism,
/// except for unknown names.
void load_weights(const std::vector<tensor::Parameter*>& parameters, const std::filesystem::path& folder,
                  const comm::Mesh& mesh, std::int64_t rank);

/// Whether the tensors of `set` carry the family's prefix ("transformer.", "model.").
bool has_prefix(const checkpoint::SafetensorsSet& set, const NameTable& table);

/// Fills `target` (of the rectangle's shape in the piece's axes, any type that a copy converts to) from the tensor
/// `name` of `set`, in which fragment.stored lies as in the tensor it names.
void read_fragment(const checkpoint::SafetensorsSet& set, const std::string& name, const Fragment& fragment,
                   const at::Tensor& target);

/// Fills `target`, shaped like slice.shape, with that part of a piece of `shape`, whose tensors are called `prefix` and
/// their name in `set`.
void read_piece(const checkpoint::SafetensorsSet& set, const Location& location, const std::vector<std::int64_t>& shape,
                const tensor::Slice& slice, const at::Tensor& target, const std::string& prefix = "");

/// The rectangle `fragment` of a piece, in `target`, the part `slice` of that piece.
at::Tensor narrow_to(const at::Tensor& target, const tensor::Slice& slice, const Fragment& fragment);

}  // namespace pharos::hf
