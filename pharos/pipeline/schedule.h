// Schedules are data: per rank an ordered list of actions. The same data is executed, checked, simulated and drawn.
//
// Symbols of this header: R ranks, V model chunks per rank, M microbatches, G microbatch group size. A rank's share of
// the model takes T_F, T_B, T_W for a forward, the input gradient and the weight gradient of one microbatch. A chunk's
// share is one V-th of that. "Span" is the time from the first start to the last end over all ranks, so that the bubble
// fraction is (span - M (T_F + T_B + T_W)) / span for equal stages. Transfers are taken as free here; simulate.h knows
// more. "Peak" counts chunk activations in flight as peak_in_flight() does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pharos::pipeline {

/// kBackward includes the weight gradient unless the schedule has kWeight actions.
enum class Phase : std::uint8_t { kForward, kBackward, kWeight };

struct Action {
  Phase phase;
  int microbatch;
  int chunk;
  bool operator==(const Action&) const = default;
};

struct Schedule {
  std::string name;
  int num_ranks = 1;
  int num_chunks = 1;  ///< model chunks per rank
  int num_microbatches = 1;
  std::vector<std::vector<int>> stage_of;    ///< [rank][chunk] -> position of that chunk in the model
  std::vector<std::vector<Action>> actions;  ///< [rank] -> in order
};

// Generators. A shape of less than one rank, chunk or microbatch is an InternalError; a microbatch count that the
// schedule cannot run is a UserError that says which it can and names the nearest.

/// GPipe (Huang et al. 2019): all forwards, then all backwards in the same order. Any M.
/// Bubble (R-1)/(M+R-1). Peak M on every rank.
Schedule gpipe(int num_ranks, int num_microbatches);

/// 1F1B without interleaving (Narayanan et al. 2019, 2021): rank r runs min(R-1-r, M) forwards, then alternates. Any M.
/// Bubble (R-1)/(M+R-1). Peak min(R-r, M) on rank r.
Schedule one_forward_one_backward(int num_ranks, int num_microbatches);

/// Interleaved 1F1B (Narayanan et al. 2021, section 2.2) in Megatron's order, V chunks per rank, chunk c of rank r
/// being stage cR+r. Microbatches go in groups of G through each chunk. V = 1 is 1F1B and knows no groups. For V > 1: R
/// <= G <= M, and M mod G is 0 or at least R. Bubble (R-1)/(VM+R-1) for G = R. Peak min(2(R-1-r) + (V-1)G + 1, VM) on
/// rank r.
Schedule interleaved(int num_ranks, int num_chunks, int num_microbatches, int microbatch_group_size);

/// ZB-H1 (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2.3), also called ZB1P: 1F1B with the weight
/// gradients of rank r delayed by r microbatches. Any M.
/// Idle time (R-1)(T_F+T_B-T_W) when M >= R and T_F = T_B = T_W (table 2 there), a third of 1F1B's.
/// Peak min(R, M) on every rank: what the first rank of 1F1B holds.
Schedule zero_bubble_1p(int num_ranks, int num_microbatches);

/// ZB-V (Qi et al. 2023, section 6; V-ZB of Qi et al. 2024, "Pipeline Parallelism with Controllable Memory"): two
/// chunks per rank in a V, rank r holding stages r and 2R-1-r. Any M. With T_F = T_B = T_W and M >= 2R-1 no rank waits
/// between its first and its last action; the span is M(T_F+T_B+T_W) + (R-1)T_F/2, the last rank's first forward being
/// preceded by R-1 chunks. Peak min(2R, 2M) chunks (of half the size): what the first rank of 1F1B holds.
Schedule zero_bubble_v(int num_ranks, int num_microbatches);

/// DualPipeV, DualPipe cut in half (DeepSeek-AI, DualPipe, 2025): two chunks per rank in a V as in zero_bubble_v, a
/// forward of one chunk beside a backward of the other in the steady state. M >= 2R. Idle time, from the published
/// (PP/2-1)(F&B + B - 3W) for PP = 2R chunks without overlap of F and B, B with its weight gradient: at most (R-1)(T_F
/// + 2T_B - T_W)/2. Peak 2R+1 chunks on every rank.
Schedule dual_pipe_v(int num_ranks, int num_microbatches);

/// Forward passes only, for evaluation. Peak 1: nothing waits for a backward.
Schedule forward_only(int num_ranks, int num_microbatches);

/// Names that make_schedule() takes: gpipe, 1f1b, interleaved, zb1p, zbv, dualpipev.
std::vector<std::string> schedule_names();

struct ScheduleShape {
  int num_ranks = 1;
  int num_chunks = 1;
  int num_microbatches = 1;
  std::optional<int> microbatch_group_size = std::nullopt;  ///< of interleaved; default: num_ranks, as Megatron
};

/// The schedule of that name. UserError for an unknown name, a number of chunks the schedule does not have, or a number
/// of microbatches it cannot run.
Schedule make_schedule(const std::string& name, const ScheduleShape& shape);

/// What is wrong with a schedule: an action missing, doubled, out of order, or waiting for ever; a rank that holds more
/// than `max_in_flight` chunk activations. Empty when sound.
std::vector<std::string> check(const Schedule& schedule, std::optional<int> max_in_flight = std::nullopt);

/// [rank] -> the most chunk activations that wait at once: from the start of a forward to the end of the last action of
/// that microbatch and chunk (its weight gradient, or its backward in a schedule without kWeight).
std::vector<int> peak_in_flight(const Schedule& schedule);

/// The last phase that occurs in the schedule; it releases what the forward kept.
Phase last_phase(const Schedule& schedule);

/// "F0", "B3.1" (microbatch 3, chunk 1): the notation of schedule files. The chunk is left out when it is 0.
std::string notation(const Action& action);

}  // namespace pharos::pipeline
