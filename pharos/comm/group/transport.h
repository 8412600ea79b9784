// Collectives on host memory over Gloo, and on CUDA tensors over NCCL: what each call hands to c10d.
#pragma once

#include "pharos/comm/group/group_state.h"

namespace pharos::comm::transport {

/// What a call started: the transfers, buffers that must live as long, and what is left to do after them.
struct Started {
  std::vector<c10::intrusive_ptr<c10d::Work>> transfers = {};
  std::vector<at::Tensor> kept = {};
  std::function<void()> finish = {};
};

Started all_reduce(GroupState& group, const at::Tensor& tensor, ReduceOp op);
Started all_gather(GroupState& group, const at::Tensor& output, const at::Tensor& input);
Started reduce_scatter(GroupState& group, const at::Tensor& output, const at::Tensor& input, ReduceOp op);
Started all_to_all(GroupState& group, const at::Tensor& output, const at::Tensor& input,
                   const std::vector<std::int64_t>& output_rows, const std::vector<std::int64_t>& input_rows);
Started broadcast(GroupState& group, const at::Tensor& tensor, std::int64_t root);
Started send(GroupState& group, const at::Tensor& tensor, std::int64_t peer);
Started receive(GroupState& group, const at::Tensor& tensor, std::int64_t peer);
Started barrier(GroupState& group);

}  // namespace pharos::comm::transport
