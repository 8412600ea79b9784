#include "pharos/comm/group/transport.h"

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "pharos/base/error.h"

namespace pharos::comm::transport {
namespace {

// Gloo matches transfers of a pair of ranks per tag and in order, so the parts of collectives need tags of their own.
enum Tag { kTransfer, kReduceScatter, kAllGather, kAllToAll };

std::size_t checked(std::int64_t index) { return static_cast<std::size_t>(index); }

bool is_on_host(const at::Tensor& tensor) { return tensor.device().is_cpu(); }

c10d::Backend& backend_of(GroupState& group, const at::Tensor& tensor) {
  auto& backend = is_on_host(tensor) ? group.host_backend : group.cuda_backend;
  PHAROS_CHECK(backend, "no transport for tensors on " + tensor.device().str());
  return *backend;
}

c10d::ReduceOp::RedOpType type_of(ReduceOp op, bool knows_average) {
  switch (op) {
    case ReduceOp::kAverage:
      return knows_average ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kSum:
      break;
  }
  return c10d::ReduceOp::SUM;
}

/// Part `index` of a flat tensor that has one part per rank.
at::Tensor part_of(const at::Tensor& whole, std::int64_t index, std::int64_t num_elements) {
  return whole.view(-1).narrow(0, index * num_elements, num_elements);
}

void add_to(at::Tensor& sum, const at::Tensor& part, ReduceOp op) {
  if (op == ReduceOp::kMin) {
    at::minimum_out(sum, sum, part);
  } else if (op == ReduceOp::kMax) {
    at::maximum_out(sum, sum, part);
  } else {
    sum.add_(part);
  }
}

/// The runs of rows that lie one after the other in `tensor`.
std::vector<at::Tensor> runs_of(const at::Tensor& tensor, const std::vector<std::int64_t>& rows) {
  std::vector<at::Tensor> runs;
  std::int64_t first = 0;
  for (const auto count : rows) {
    runs.push_back(tensor.narrow(0, first, count));
    first += count;
  }
  return runs;
}

/// output = reduction of all ranks' parts in the order of ranks, so that the result does not depend on who came first.
/// Sums of 16-bit types are made in fp32 and rounded once. `output` may be `own`; `others` are overwritten.
void reduce_parts(const at::Tensor& output, const at::Tensor& own, std::vector<at::Tensor>& others, std::int64_t rank,
                  ReduceOp op) {
  const bool is_narrow = output.is_floating_point() && output.element_size() < 4;
  std::vector<at::Tensor> parts(others);
  parts.insert(parts.begin() + rank, own);
  // The first part is the accumulator unless it is this rank's: that one may be the caller's input.
  at::Tensor sum = is_narrow ? parts[0].to(at::kFloat, false, true) : rank == 0 ? own.clone() : parts[0];
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const auto part = is_narrow ? parts[i].to(at::kFloat) : parts[i];
    add_to(sum, part, op);
  }
  if (op == ReduceOp::kAverage) sum.div_(static_cast<double>(parts.size()));
  output.copy_(sum);
}

}  // namespace

Started all_reduce(GroupState& group, const at::Tensor& tensor, ReduceOp op) {
  const bool is_host = is_on_host(tensor);
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = type_of(op, !is_host);
  options.timeout = group.timeout->load();
  Started started{.transfers = {backend_of(group, tensor).allreduce(tensors, options)}, .kept = tensors};
  if (is_host && op == ReduceOp::kAverage) {
    started.finish = [tensor, size = static_cast<double>(group.flight.ranks().size())] {
      at::Tensor(tensor).div_(size);
    };
  }
  return started;
}

Started all_gather(GroupState& group, const at::Tensor& output, const at::Tensor& input) {
  auto& backend = backend_of(group, output);
  auto flat_output = output.view(-1);
  auto flat_input = input.view(-1);
  Started started{.kept = {output, input}};
  if (!is_on_host(output)) {
    c10d::AllgatherOptions options;
    options.timeout = group.timeout->load();
    started.transfers = {backend._allgather_base(flat_output, flat_input, options)};
    return started;
  }
  // Every rank sends its part straight to every other: as many bytes as a ring moves, no copy (c10d's own gathers into
  // a buffer of its own), and the device's thread does it all.
  const auto size = std::ssize(group.flight.ranks());
  for (std::int64_t distance = 1; distance < size; ++distance) {
    const auto source = (group.rank - distance + size) % size;
    std::vector<at::Tensor> part{part_of(output, source, input.numel())};
    started.transfers.push_back(backend.recv(part, static_cast<int>(source), kAllGather));
  }
  for (std::int64_t distance = 1; distance < size; ++distance) {
    std::vector<at::Tensor> part{flat_input};
    started.transfers.push_back(backend.send(part, static_cast<int>((group.rank + distance) % size), kAllGather));
  }
  auto own = part_of(output, group.rank, input.numel());
  if (own.data_ptr() != flat_input.data_ptr()) own.copy_(flat_input);
  return started;
}

Started reduce_scatter(GroupState& group, const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  auto& backend = backend_of(group, output);
  auto flat_output = output.view(-1);
  auto flat_input = input.view(-1);
  Started started{.kept = {output, input}};
  if (!is_on_host(output)) {
    c10d::ReduceScatterOptions options;
    options.reduceOp = type_of(op, true);
    options.timeout = group.timeout->load();
    started.transfers = {backend._reduce_scatter_base(flat_output, flat_input, options)};
    return started;
  }
  // c10d's own reduces everything on every rank and throws most of it away. Here each part goes once to its owner.
  const auto size = std::ssize(group.flight.ranks());
  std::vector<at::Tensor> others(checked(size - 1));
  for (std::int64_t distance = 1; distance < size; ++distance) {
    const auto source = (group.rank - distance + size) % size;
    auto& buffer = others[checked(source < group.rank ? source : source - 1)];
    buffer = at::empty_like(flat_output);
    std::vector<at::Tensor> part{buffer};
    started.transfers.push_back(backend.recv(part, static_cast<int>(source), kReduceScatter));
  }
  for (std::int64_t distance = 1; distance < size; ++distance) {
    const auto target = (group.rank + distance) % size;
    std::vector<at::Tensor> part{part_of(input, target, output.numel())};
    started.transfers.push_back(backend.send(part, static_cast<int>(target), kReduceScatter));
  }
  started.finish = [flat_output, own = part_of(input, group.rank, output.numel()), others = std::move(others),
                    rank = group.rank, op]() mutable { reduce_parts(flat_output, own, others, rank, op); };
  return started;
}

Started all_to_all(GroupState& group, const at::Tensor& output, const at::Tensor& input,
                   const std::vector<std::int64_t>& output_rows, const std::vector<std::int64_t>& input_rows) {
  auto& backend = backend_of(group, output);
  Started started{.kept = {output, input}};
  if (!is_on_host(output)) {
    auto to = output, from = input;
    auto to_rows = output_rows, from_rows = input_rows;
    c10d::AllToAllOptions options;
    options.timeout = group.timeout->load();
    started.transfers = {backend.alltoall_base(to, from, to_rows, from_rows, options)};
    return started;
  }
  // Gloo's own takes a step per pair, each waiting for the one before; and a pair without rows needs no message.
  const auto size = std::ssize(group.flight.ranks());
  const auto to = runs_of(output, output_rows), from = runs_of(input, input_rows);
  for (std::int64_t distance = 1; distance < size; ++distance) {
    const auto source = (group.rank - distance + size) % size;
    std::vector<at::Tensor> part{to[checked(source)]};
    if (part.front().numel() > 0) started.transfers.push_back(backend.recv(part, static_cast<int>(source), kAllToAll));
  }
  for (std::int64_t distance = 1; distance < size; ++distance) {
    const auto target = (group.rank + distance) % size;
    std::vector<at::Tensor> part{from[checked(target)]};
    if (part.front().numel() > 0) started.transfers.push_back(backend.send(part, static_cast<int>(target), kAllToAll));
  }
  at::Tensor(to[checked(group.rank)]).copy_(from[checked(group.rank)]);
  return started;
}

Started broadcast(GroupState& group, const at::Tensor& tensor, std::int64_t root) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = group.timeout->load();
  return {.transfers = {backend_of(group, tensor).broadcast(tensors, options)}, .kept = tensors};
}

Started send(GroupState& group, const at::Tensor& tensor, std::int64_t peer) {
  std::vector<at::Tensor> tensors{tensor};
  return {.transfers = {backend_of(group, tensor).send(tensors, static_cast<int>(peer), kTransfer)}, .kept = tensors};
}

Started receive(GroupState& group, const at::Tensor& tensor, std::int64_t peer) {
  std::vector<at::Tensor> tensors{tensor};
  return {.transfers = {backend_of(group, tensor).recv(tensors, static_cast<int>(peer), kTransfer)}, .kept = tensors};
}

Started barrier(GroupState& group) {
  c10d::BarrierOptions options;
  options.timeout = group.timeout->load();
  return {.transfers = {group.host_backend->barrier(options)}};
}

}  // namespace pharos::comm::transport
