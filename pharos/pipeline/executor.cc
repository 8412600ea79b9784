#include "pharos/pipeline/executor.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/comm/flight.h"
#include "pharos/lens/span.h"
#include "pharos/pipeline/dependencies.h"
#include "pharos/pipeline/simulate.h"
#include "pharos/pipeline/transfers.h"

namespace pharos::pipeline {
namespace {

/// Receives are posted for this many actions beyond the one at hand: the tensors of the next forward and of the next
/// backward come in while this action computes. More would only keep more buffers.
constexpr std::size_t kActionsAhead = 2;

constexpr std::size_t kEnd = std::numeric_limits<std::size_t>::max();

const char* phase_name(Phase phase) {
  return phase == Phase::kForward ? "forward" : phase == Phase::kBackward ? "backward" : "weight gradient";
}

comm::Purpose purpose_of(const Action& action) {
  return {action.phase == Phase::kForward ? "activations of microbatch" : "gradients of microbatch", action.microbatch};
}

struct Inbox {
  Tensors tensors;
  std::vector<comm::Work> works;
};

/// All that comes from one rank, in the order in which it is sent.
struct Stream {
  int peer = 0;
  comm::Group* group = nullptr;
  std::vector<std::size_t> positions = {};  ///< of the actions that take it
  std::size_t num_posted = 0;
};

/// An action and where its tensors come from and go to. Without stream and local position: nowhere.
struct Step {
  Action action;
  int stage = 0;
  std::optional<std::size_t> stream = {};          ///< its input comes from another rank …
  std::size_t order = 0;                           ///< … at this place of the stream
  std::optional<int> target = {};                  ///< its output goes to another rank
  std::optional<std::size_t> local_position = {};  ///< its output goes to an action of this rank
  /// The action of this rank whose input comes from an action of the target that had this output before it. Once that
  /// input is there, the send is over, which Gloo does not tell of its own accord. Without: at the end of the walk.
  std::size_t arrived_at = kEnd;
};

/// Step::arrived_at of the sender of `sent`, which gets `received`.
std::size_t arrival_position(const std::vector<Transfer>& received, const Transfer& sent) {
  std::size_t position = kEnd;
  for (const Transfer& answer : received) {
    if (answer.from.rank != sent.to.rank || answer.from.position < sent.to.position) continue;
    position = std::min(position, static_cast<std::size_t>(answer.to.position));
  }
  return position;
}

/// In a schedule of forwards alone nobody answers: the position of the sender's action, not before the third from now,
/// that can wait for the tensor to have arrived. The receiver posts for it after its action kActionsAhead before; where
/// this one ends no later than the sender's begins, in whatever timeline, none of those that lead to it waits for the
/// sender's, so waiting closes no circle.
std::size_t last_resort(const Timeline& timeline, const Transfer& sent) {
  const int posted_after = sent.to.position - static_cast<int>(kActionsAhead) - 1;
  const auto& receiver = timeline.ranks[static_cast<std::size_t>(sent.to.rank)].actions;
  const double posted = posted_after < 0 ? 0 : receiver[static_cast<std::size_t>(posted_after)].end;
  const auto& sender = timeline.ranks[static_cast<std::size_t>(sent.from.rank)].actions;
  for (auto position = static_cast<std::size_t>(sent.from.position) + 3; position < sender.size(); ++position) {
    if (sender[position].start >= posted) return position;
  }
  return kEnd;
}

/// A span of group `communication` or `microbatch` by phase of the action.
lens::ManagedSpan open_span(lens::Group group, const std::array<lens::NameId, kNumPhases>& names, Phase phase) {
  if (!lens::is_span_group_enabled(group)) return {};
  return lens::ManagedSpan::start(group, names[static_cast<std::size_t>(phase)], {});
}

lens::ManagedSpan open_microbatch_span(Phase phase) {
  static const std::array kNames{lens::intern_name("megatron.microbatch.forward"),
                                 lens::intern_name("megatron.microbatch.backward"),
                                 lens::intern_name("megatron.microbatch.weight")};
  return open_span(lens::Group::kMicrobatch, kNames, phase);
}

lens::ManagedSpan open_receive_span(Phase phase) {
  static const std::array kNames{lens::intern_name("megatron.p2p.recv_forward"),
                                 lens::intern_name("megatron.p2p.recv_backward"), lens::NameId{}};
  return open_span(lens::Group::kCommunication, kNames, phase);
}

lens::ManagedSpan open_send_span(Phase phase) {
  static const std::array kNames{lens::intern_name("megatron.p2p.send_forward"),
                                 lens::intern_name("megatron.p2p.send_backward"), lens::NameId{}};
  return open_span(lens::Group::kCommunication, kNames, phase);
}

void describe(lens::ManagedSpan& span, const Step& step) {
  span.set("megatron.microbatch_id", std::int64_t{step.action.microbatch});
  span.set("megatron.pipeline.stage", std::int64_t{step.stage});
  span.set("megatron.pipeline.chunk", std::int64_t{step.action.chunk});
}

std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return torch_error != nullptr ? text.substr(0, text.find('\n')) : text;
}

}  // namespace

struct Executor::State {
  Schedule schedule;
  int rank;
  Channels channels;
  at::Device device;
  std::vector<Step> steps;
  std::vector<Stream> streams;

  std::vector<Inbox> inboxes;                    ///< [position]
  std::multimap<std::size_t, comm::Work> sends;  ///< by Step::arrived_at
  MeasuredStep measured;

  comm::Group& channel(int from, int to) const {
    comm::Group* group = from < to ? channels.ascending : channels.descending;
    PHAROS_CHECK(group != nullptr && group->size() == schedule.num_ranks, "the channels are not those of the schedule");
    return *group;
  }

  void lay_out();
  void begin(std::int64_t step);
  void post(StageRunner& runner, std::size_t position);
  void post_next(StageRunner& runner, Stream& stream);
  Tensors take_input(std::size_t position);
  Tensors compute(StageRunner& runner, const Step& step, Tensors input) const;
  void hand_over(const Step& step, Tensors output);
  void release_sent(std::size_t position);
  void walk(StageRunner& runner);
  [[noreturn]] void fail(const std::exception& error, const Step& step) const;
};

void Executor::State::lay_out() {
  const auto& actions = schedule.actions[rank];
  const auto holders = stage_holders(schedule);
  std::map<std::tuple<Phase, int, int>, std::size_t> positions;
  for (const Action& action : actions) {
    positions[{action.phase, action.microbatch, action.chunk}] = steps.size();
    steps.push_back({.action = action, .stage = schedule.stage_of[rank][action.chunk]});
  }
  for (Step& step : steps) {
    const auto next = waiting_stage(step.action.phase, step.stage, static_cast<int>(holders.size()));
    if (!next || holders[*next].rank != rank) continue;
    step.local_position = positions.at({step.action.phase, step.action.microbatch, holders[*next].chunk});
  }
  std::map<int, std::size_t> stream_of;
  const std::vector<Transfer> all_transfers = transfers(schedule);
  std::vector<Transfer> received;
  std::copy_if(all_transfers.begin(), all_transfers.end(), std::back_inserter(received),
               [&](const Transfer& transfer) { return transfer.to.rank == rank; });
  std::optional<Timeline> forwards;
  if (last_phase(schedule) == Phase::kForward)
    forwards = simulate(schedule, even_costs(static_cast<int>(holders.size())));
  for (const Transfer& transfer : all_transfers) {
    if (transfer.from.rank == rank) {
      Step& step = steps[static_cast<std::size_t>(transfer.from.position)];
      step.target = transfer.to.rank;
      step.arrived_at = arrival_position(received, transfer);
      if (forwards) step.arrived_at = std::min(step.arrived_at, last_resort(*forwards, transfer));
    }
    if (transfer.to.rank != rank) continue;
    const auto [place, is_new] = stream_of.try_emplace(transfer.from.rank, streams.size());
    if (is_new) streams.push_back({.peer = transfer.from.rank, .group = &channel(transfer.from.rank, rank)});
    Step& step = steps[static_cast<std::size_t>(transfer.to.position)];
    step.stream = place->second;
    step.order = streams[place->second].positions.size();
    streams[place->second].positions.push_back(static_cast<std::size_t>(transfer.to.position));
  }
}

void Executor::State::begin(std::int64_t step) {
  inboxes.clear();
  inboxes.resize(steps.size());
  sends.clear();
  for (Stream& stream : streams) stream.num_posted = 0;
  measured = {.step = step,
              .schedule = schedule.name,
              .num_ranks = schedule.num_ranks,
              .num_chunks = schedule.num_chunks,
              .num_microbatches = schedule.num_microbatches,
              .rank = rank,
              .stages = schedule.stage_of[rank]};
  measured.actions.reserve(steps.size());
}

void Executor::State::post_next(StageRunner& runner, Stream& stream) {
  const std::size_t position = stream.positions[stream.num_posted++];
  const Step& step = steps[position];
  const int boundary = step.action.phase == Phase::kForward ? step.stage - 1 : step.stage;
  Inbox& inbox = inboxes[position];
  for (const TensorSpec& spec : runner.boundary(step.action.microbatch, boundary)) {
    inbox.tensors.push_back(at::empty(spec.sizes, at::TensorOptions().dtype(spec.type).device(device)));
    inbox.works.push_back(stream.group->receive(inbox.tensors.back(), stream.peer, purpose_of(step.action)));
  }
}

/// Posts what the action at `position` and the next ones need, and what is sent before that on the same way.
void Executor::State::post(StageRunner& runner, std::size_t position) {
  const std::size_t end = std::min(position + kActionsAhead + 1, steps.size());
  for (; position < end; ++position) {
    const Step& step = steps[position];
    if (!step.stream) continue;
    Stream& stream = streams[*step.stream];
    while (stream.num_posted <= step.order) post_next(runner, stream);
  }
}

Tensors Executor::State::take_input(std::size_t position) {
  Inbox& inbox = inboxes[position];
  if (!inbox.works.empty()) {
    lens::ManagedSpan span = open_receive_span(steps[position].action.phase);
    if (span) describe(span, steps[position]);
    for (comm::Work& work : inbox.works) work.wait();
  }
  return std::exchange(inbox, {}).tensors;
}

Tensors Executor::State::compute(StageRunner& runner, const Step& step, Tensors input) const {
  const auto [phase, microbatch, chunk] = step.action;
  lens::ManagedSpan span = open_microbatch_span(phase);
  if (span && schedule.num_ranks > 1) describe(span, step);
  if (phase == Phase::kForward) return runner.forward(microbatch, chunk, std::move(input));
  if (phase == Phase::kBackward) return runner.backward(microbatch, chunk, std::move(input));
  runner.weight(microbatch, chunk);
  return {};
}

void Executor::State::hand_over(const Step& step, Tensors output) {
  if (step.local_position) inboxes[*step.local_position].tensors = std::move(output);
  if (!step.target) return;
  lens::ManagedSpan span = open_send_span(step.action.phase);
  if (span) describe(span, step);
  comm::Group& group = channel(rank, *step.target);
  for (const at::Tensor& tensor : output) {
    measured.bytes_sent += static_cast<std::int64_t>(tensor.nbytes());
    sends.emplace(step.arrived_at, group.send(tensor, *step.target, purpose_of(step.action)));
  }
}

/// Lets go of tensors that have been sent, as the input of the action at `position` shows.
void Executor::State::release_sent(std::size_t position) {
  const auto end = sends.upper_bound(position);
  for (auto sent = sends.begin(); sent != end; ++sent) sent->second.wait();
  sends.erase(sends.begin(), end);
}

void Executor::State::walk(StageRunner& runner) {
  const bool is_pipelined = schedule.num_ranks > 1;
  for (std::size_t position = 0; position < steps.size(); ++position) {
    const Step& step = steps[position];
    try {
      if (is_pipelined) {
        comm::report_activity(phase_name(step.action.phase), step.action.microbatch, step.stage);
        post(runner, position);
      }
      MeasuredAction times{.action = step.action, .asked_ns = base::steady_wall_ns()};
      Tensors input = take_input(position);
      release_sent(position);
      times.start_ns = base::steady_wall_ns();
      Tensors output = compute(runner, step, std::move(input));
      times.end_ns = base::steady_wall_ns();
      measured.actions.push_back(times);
      hand_over(step, std::move(output));
      if (position + 1 == steps.size()) release_sent(kEnd);
    } catch (const std::exception& error) {
      if (!is_pipelined) throw;
      fail(error, step);
    }
  }
  if (is_pipelined) comm::report_activity("", 0, 0);
}

void Executor::State::fail(const std::exception& error, const Step& step) const {
  if (dynamic_cast<const base::UserError*>(&error) != nullptr) throw;
  const std::string text = fmt::format(
      "{}\n  at the {} of microbatch {} on stage {} (pipeline rank {}, chunk {}) in step {}", first_line(error),
      phase_name(step.action.phase), step.action.microbatch, step.stage, rank, step.action.chunk, measured.step);
  if (dynamic_cast<const comm::CommunicationError*>(&error) != nullptr) throw comm::CommunicationError(text);
  if (dynamic_cast<const base::InternalError*>(&error) != nullptr) throw base::InternalError(text);
  throw base::TrainingError(text);
}

Executor::Executor(Schedule schedule, int rank, Channels channels, at::Device device)
    : state_(std::make_unique<State>(State{.schedule = std::move(schedule),
                                           .rank = rank,
                                           .channels = channels,
                                           .device = device,
                                           .steps = {},
                                           .streams = {},
                                           .inboxes = {},
                                           .sends = {},
                                           .measured = {}})) {
  PHAROS_CHECK(rank >= 0 && rank < state_->schedule.num_ranks,
               "schedule " + state_->schedule.name + " has no rank " + std::to_string(rank));
  state_->lay_out();
}

Executor::~Executor() = default;

const Schedule& Executor::schedule() const { return state_->schedule; }

MeasuredStep Executor::run(StageRunner& runner, std::int64_t step) {
  state_->begin(step);
  state_->walk(runner);
  return std::move(state_->measured);
}

}  // namespace pharos::pipeline
