// One way through communication: every collective and transfer is a call on a Group. A call carries a purpose, is
// numbered within its group, and leaves arrival, start and end in the flight record (flight.h), where watchdog and
// launcher read who waits for whom; with span group `communication` on it is also a span.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::comm {

struct GroupState;  // of the implementation
struct WorkState;

/// A collective that did not come to its end: a peer is gone, or did not arrive within the time-out. The message names
/// group, operation, number and purpose. The process can only leave: the state of its peers is unknown.
class CommunicationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// kAverage is for floating-point types.
enum class ReduceOp : std::uint8_t { kSum, kAverage, kMin, kMax };

/// What a call is for, in words an operator knows: {"gradient bucket", 3}. `what` must be a literal.
struct Purpose {
  const char* what;
  std::int64_t index = -1;  ///< -1: none
};

/// A call under way. Waiting twice is harmless; a Work that was never started is done. Waits in its destructor unless
/// an exception is in flight, so that buffers outlive their transfer.
class Work {
 public:
  Work();
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();
  /// Until the result is in place (CUDA: until the current stream will see it). CommunicationError.
  void wait();
  bool is_done() const;

 private:
  friend class Group;
  std::unique_ptr<WorkState> state_;
};

/// Ranks that communicate with each other. Every member must make the same calls in the same order. In a group of one
/// every call is done at once: inputs are copied to outputs, nothing is recorded. Tensors are contiguous, of the same
/// shape and type on all members, on the World's device, and must stay untouched until the Work is done. Calls from
/// different threads of one process on the same group are not allowed, but for Work.
class Group {
 public:
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// "tp", "dp", "world", …: the dimension, the same for all groups along it.
  const std::string& name() const;
  std::int64_t rank() const;  ///< of this process within the group
  std::int64_t size() const;
  const std::vector<std::int64_t>& ranks() const;  ///< global, in order

  /// Reduces `tensor` over the group, in place.
  [[nodiscard]] Work all_reduce(const at::Tensor& tensor, ReduceOp op, Purpose purpose);
  /// output: size() × input.numel() elements, one part per rank in order. `input` may be this rank's part of `output`.
  [[nodiscard]] Work all_gather(const at::Tensor& output, const at::Tensor& input, Purpose purpose);
  /// input: size() × output.numel() elements; this rank gets the reduction of its part. `output` may be that part.
  [[nodiscard]] Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, Purpose purpose);
  /// Rows (along the first axis) between all pairs of members: `input` holds in order of the ranks what goes to each,
  /// input_rows[r] rows to rank r; `output` what comes from each. input_rows[r] here is output_rows[this rank] on r.
  [[nodiscard]] Work all_to_all(const at::Tensor& output, const at::Tensor& input,
                                const std::vector<std::int64_t>& output_rows,
                                const std::vector<std::int64_t>& input_rows, Purpose purpose);
  /// From group rank `root` to all.
  [[nodiscard]] Work broadcast(const at::Tensor& tensor, std::int64_t root, Purpose purpose);
  /// To and from group rank `peer`. Transfers of a pair of ranks are matched in order.
  [[nodiscard]] Work send(const at::Tensor& tensor, std::int64_t peer, Purpose purpose);
  [[nodiscard]] Work receive(const at::Tensor& tensor, std::int64_t peer, Purpose purpose);
  /// Until every member has called it.
  void barrier(Purpose purpose);
  /// The same for a few numbers on the host, waited for.
  std::vector<double> reduce_values(std::vector<double> values, ReduceOp op, Purpose purpose);
  double reduce_value(double value, ReduceOp op, Purpose purpose);

 private:
  friend class World;
  explicit Group(std::unique_ptr<GroupState> state);
  std::unique_ptr<GroupState> state_;
};

}  // namespace pharos::comm
