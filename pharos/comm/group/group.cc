#include "pharos/comm/group.h"

#include <ATen/ATen.h>

#include <array>
#include <exception>
#include <numeric>
#include <utility>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/comm/group/group_state.h"
#include "pharos/comm/group/transport.h"

namespace pharos::comm {
namespace {

/// First line of what a transport said, without the traces c10d adds.
std::string first_line(const std::exception& exception) {
  const auto* error = dynamic_cast<const c10::Error*>(&exception);
  std::string text = error != nullptr ? error->what_without_backtrace() : exception.what();
  return text.substr(0, text.find('\n'));
}

[[noreturn]] void fail(const GroupState& group, const FlightCall& call, const std::exception& reason) {
  const auto text = first_line(reason);
  const bool is_late = text.find("imed out") != std::string::npos || text.find("imeout") != std::string::npos;
  std::string message = std::string(operation_name(call.operation)) + " \"" +
                        purpose_text(call.purpose, call.purpose_index) + "\", call " + std::to_string(call.number) +
                        " in group " + group.describe();
  if (call.peer >= 0)
    message += (call.operation == Operation::kSend ? ", to rank " : ", from rank ") + std::to_string(call.peer);
  message += is_late ? ": a peer did not come within the time-out of " +
                           base::format_duration(std::chrono::nanoseconds(group.timeout->load()).count())
                     : ": the connection to a peer broke, it has probably ended";
  throw CommunicationError(message + " (" + text + ").");
}

lens::ManagedSpan open_span(const FlightGroup& group, const FlightCall& call) {
  if (!lens::is_span_group_enabled(lens::Group::kCommunication)) return {};
  static const std::array kNames{
      lens::intern_name("megatron.comm.all_reduce"),     lens::intern_name("megatron.comm.all_gather"),
      lens::intern_name("megatron.comm.reduce_scatter"), lens::intern_name("megatron.comm.broadcast"),
      lens::intern_name("megatron.comm.send"),           lens::intern_name("megatron.comm.receive"),
      lens::intern_name("megatron.comm.barrier"),        lens::intern_name("megatron.comm.all_to_all")};
  const auto purpose = purpose_text(call.purpose, call.purpose_index);
  const std::array<lens::Attribute, 4> attributes{{{"megatron.comm.group", group.name()},
                                                   {"megatron.comm.purpose", purpose},
                                                   {"megatron.comm.bytes", call.bytes},
                                                   {"megatron.comm.sequence", call.number}}};
  // Several calls are open at a time and end in any order, so none of them is the current span.
  return lens::ManagedSpan::start_with(lens::Group::kCommunication, kNames[static_cast<std::size_t>(call.operation)],
                                       {.make_current = false, .scope = lens::Scope::kHelpers}, attributes);
}

/// Runs `start` as one call of `group`: numbered, recorded, its errors translated.
template <typename Start>
std::unique_ptr<WorkState> begin(GroupState& group, FlightCall call, const Start& start) {
  if (!group.failure.empty()) throw CommunicationError(group.failure);
  auto work = std::make_unique<WorkState>();
  call.number = group.flight.next_number(call.channel);
  work->group = &group;
  work->call = call;
  work->num_exceptions = std::uncaught_exceptions();
  if (auto* writer = FlightWriter::current()) work->ticket = writer->begin(group.flight, call);
  work->span = open_span(group.flight, call);
  const at::NoGradGuard no_grad;
  try {
    auto started = start();
    work->transfers = std::move(started.transfers);
    work->kept = std::move(started.kept);
    work->finish = std::move(started.finish);
  } catch (const std::exception& reason) {
    work->is_done = true;
    work->span.record_exception(reason);
    fail(group, call, reason);
  }
  work->ticket.mark_start();
  return work;
}

std::int64_t bytes_of(const at::Tensor& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }

void check_tensor(const at::Tensor& tensor) {
  PHAROS_CHECK(tensor.is_contiguous(), "tensors of a collective must be contiguous");
}

void check_runs(const at::Tensor& tensor, const std::vector<std::int64_t>& rows, std::int64_t num_ranks) {
  PHAROS_CHECK(tensor.dim() > 0 && std::ssize(rows) == num_ranks &&
                   std::accumulate(rows.begin(), rows.end(), std::int64_t{0}) == tensor.size(0),
               "all_to_all: one number of rows per rank, which add up to those of the tensor");
}

void check_operation(const at::Tensor& tensor, ReduceOp op) {
  PHAROS_CHECK(op != ReduceOp::kAverage || tensor.is_floating_point(), "an average of whole numbers");
}

}  // namespace

std::string GroupState::describe() const {
  std::vector<std::string> numbers;
  for (const auto member : flight.ranks()) numbers.push_back(std::to_string(member));
  return flight.name() + " (ranks " + base::join(numbers, ", ") + ")";
}

void WorkState::wait() {
  if (is_done) return;
  is_done = true;
  ticket.mark_wait();
  const at::NoGradGuard no_grad;
  try {
    for (auto& transfer : transfers) {
      // Point-to-point transfers count the time-out from here; collectives have it from their start. CUDA: no wait.
      const bool is_on_host = kept.empty() || kept.front().device().is_cpu();
      const bool is_transfer = call.operation != Operation::kAllReduce && call.operation != Operation::kBroadcast &&
                               call.operation != Operation::kBarrier;
      if (!transfer->wait(is_on_host && is_transfer ? group->timeout->load() : kNoTimeout)) {
        throw std::runtime_error("the transfer was aborted");
      }
    }
    if (finish) finish();
  } catch (const std::exception& reason) {
    span.record_exception(reason);
    span.end();
    fail(*group, call, reason);
  }
  ticket.mark_end();
  span.end();
  transfers.clear();
  kept.clear();
  finish = nullptr;
}

Work::Work() = default;
Work::Work(Work&&) noexcept = default;

Work& Work::operator=(Work&& other) noexcept {
  Work old(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

Work::~Work() {
  if (!state_ || state_->is_done || std::uncaught_exceptions() > state_->num_exceptions) return;
  try {
    state_->wait();
  } catch (const std::exception& error) {
    state_->group->failure = error.what();  // thrown by the next call
  }
}

void Work::wait() {
  if (state_) state_->wait();
}

bool Work::is_done() const {
  if (!state_ || state_->is_done) return true;
  for (const auto& transfer : state_->transfers) {
    if (!transfer->isCompleted()) return false;
  }
  return true;
}

Group::Group(std::unique_ptr<GroupState> state) : state_(std::move(state)) {}
Group::~Group() = default;

const std::string& Group::name() const { return state_->flight.name(); }
std::int64_t Group::rank() const { return state_->rank; }
std::int64_t Group::size() const { return std::ssize(state_->flight.ranks()); }
const std::vector<std::int64_t>& Group::ranks() const { return state_->flight.ranks(); }

Work Group::all_reduce(const at::Tensor& tensor, ReduceOp op, Purpose purpose) {
  Work work;
  check_operation(tensor, op);
  if (size() == 1) return work;
  check_tensor(tensor);
  work.state_ = begin(*state_,
                      {.operation = Operation::kAllReduce,
                       .purpose = purpose.what,
                       .purpose_index = purpose.index,
                       .bytes = bytes_of(tensor)},
                      [&] { return transport::all_reduce(*state_, tensor, op); });
  return work;
}

Work Group::all_gather(const at::Tensor& output, const at::Tensor& input, Purpose purpose) {
  Work work;
  check_tensor(output);
  check_tensor(input);
  PHAROS_CHECK(output.numel() == size() * input.numel() && output.scalar_type() == input.scalar_type(),
               "all_gather: the output must have size() times the input's elements, of its type");
  if (size() == 1) {
    if (output.data_ptr() != input.data_ptr()) output.view(-1).copy_(input.view(-1));
    return work;
  }
  work.state_ = begin(*state_,
                      {.operation = Operation::kAllGather,
                       .purpose = purpose.what,
                       .purpose_index = purpose.index,
                       .bytes = bytes_of(output)},
                      [&] { return transport::all_gather(*state_, output, input); });
  return work;
}

Work Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, Purpose purpose) {
  Work work;
  check_tensor(output);
  check_tensor(input);
  check_operation(input, op);
  PHAROS_CHECK(input.numel() == size() * output.numel() && output.scalar_type() == input.scalar_type(),
               "reduce_scatter: the input must have size() times the output's elements, of its type");
  if (size() == 1) {
    if (output.data_ptr() != input.data_ptr()) output.view(-1).copy_(input.view(-1));
    return work;
  }
  work.state_ = begin(*state_,
                      {.operation = Operation::kReduceScatter,
                       .purpose = purpose.what,
                       .purpose_index = purpose.index,
                       .bytes = bytes_of(input)},
                      [&] { return transport::reduce_scatter(*state_, output, input, op); });
  return work;
}

Work Group::all_to_all(const at::Tensor& output, const at::Tensor& input, const std::vector<std::int64_t>& output_rows,
                       const std::vector<std::int64_t>& input_rows, Purpose purpose) {
  Work work;
  check_tensor(output);
  check_tensor(input);
  check_runs(output, output_rows, size());
  check_runs(input, input_rows, size());
  const auto place = static_cast<std::size_t>(rank());
  PHAROS_CHECK(output.sizes().slice(1) == input.sizes().slice(1) && output.scalar_type() == input.scalar_type() &&
                   output_rows[place] == input_rows[place],
               "all_to_all: input and output must have rows of one shape and type, and agree on those of this rank");
  if (size() == 1) {
    if (output.data_ptr() != input.data_ptr()) at::Tensor(output).copy_(input);
    return work;
  }
  work.state_ = begin(*state_,
                      {.operation = Operation::kAllToAll,
                       .purpose = purpose.what,
                       .purpose_index = purpose.index,
                       .bytes = bytes_of(input)},
                      [&] { return transport::all_to_all(*state_, output, input, output_rows, input_rows); });
  return work;
}

Work Group::broadcast(const at::Tensor& tensor, std::int64_t root, Purpose purpose) {
  Work work;
  PHAROS_CHECK(root >= 0 && root < size(), "broadcast from a rank that is not in the group");
  if (size() == 1) return work;
  check_tensor(tensor);
  work.state_ = begin(*state_,
                      {.operation = Operation::kBroadcast,
                       .purpose = purpose.what,
                       .purpose_index = purpose.index,
                       .bytes = bytes_of(tensor)},
                      [&] { return transport::broadcast(*state_, tensor, root); });
  return work;
}

Work Group::send(const at::Tensor& tensor, std::int64_t peer, Purpose purpose) {
  Work work;
  PHAROS_CHECK(peer >= 0 && peer < size() && peer != rank(), "a transfer needs another rank of the group");
  check_tensor(tensor);
  work.state_ = begin(*state_,
                      {.operation = Operation::kSend,
                       .channel = FlightGroup::send_channel(peer),
                       .purpose = purpose.what,
                       .purpose_index = purpose.index,
                       .bytes = bytes_of(tensor),
                       .peer = ranks()[static_cast<std::size_t>(peer)]},
                      [&] { return transport::send(*state_, tensor, peer); });
  return work;
}

Work Group::receive(const at::Tensor& tensor, std::int64_t peer, Purpose purpose) {
  Work work;
  PHAROS_CHECK(peer >= 0 && peer < size() && peer != rank(), "a transfer needs another rank of the group");
  check_tensor(tensor);
  work.state_ = begin(*state_,
                      {.operation = Operation::kReceive,
                       .channel = FlightGroup::receive_channel(peer),
                       .purpose = purpose.what,
                       .purpose_index = purpose.index,
                       .bytes = bytes_of(tensor),
                       .peer = ranks()[static_cast<std::size_t>(peer)]},
                      [&] { return transport::receive(*state_, tensor, peer); });
  return work;
}

void Group::barrier(Purpose purpose) {
  if (size() == 1) return;
  begin(*state_, {.operation = Operation::kBarrier, .purpose = purpose.what, .purpose_index = purpose.index}, [&] {
    return transport::barrier(*state_);
  })->wait();
}

std::vector<double> Group::reduce_values(std::vector<double> values, ReduceOp op, Purpose purpose) {
  if (size() == 1 || values.empty()) return values;
  const auto tensor = at::from_blob(values.data(), {std::ssize(values)}, at::kDouble);
  all_reduce(tensor, op, purpose).wait();
  return values;
}

double Group::reduce_value(double value, ReduceOp op, Purpose purpose) {
  return reduce_values({value}, op, purpose).front();
}

}  // namespace pharos::comm
