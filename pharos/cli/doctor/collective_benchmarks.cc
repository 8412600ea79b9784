#include "pharos/cli/doctor/collective_benchmarks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "pharos/base/clock.h"
#include "pharos/base/text.h"
#include "pharos/launch/doctor/node.h"
#include "pharos/launch/doctor/peers.h"
#include "pharos/launch/doctor/statistics.h"

namespace pharos::cli {
namespace {

using comm::Purpose;
using launch::Findings;

constexpr int kRepeats = 5;
constexpr std::int64_t kSmallNumbers = 1024, kLargeNumbers = std::int64_t{1} << 21;  // of 4 bytes
constexpr Purpose kMeasured{"benchmark"};

void wait_for_device(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) static_cast<void>(tensor.flatten()[0].item<float>());
}

/// Median seconds of a call, of the rank that took longest.
double seconds_of(comm::World& world, const std::function<at::Tensor()>& call) {
  wait_for_device(call());
  std::vector<double> seconds;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    world.all().barrier({"benchmark start"});
    const std::int64_t begin_ns = base::monotonic_ns();
    wait_for_device(call());
    seconds.push_back(static_cast<double>(base::monotonic_ns() - begin_ns) * 1e-9);
  }
  return world.all().reduce_value(launch::median_of(seconds), comm::ReduceOp::kMax, {"benchmark result"});
}

struct Kind {
  const char* name;
  double bus_factor;  ///< bytes that a rank sends at least, for each byte of the large buffer
  std::function<at::Tensor(std::int64_t)> call;  ///< with numbers of 4 bytes of the large buffer
};

std::vector<Kind> kinds_of(comm::World& world) {
  const std::int64_t size = world.size();
  const double share = static_cast<double>(size - 1) / static_cast<double>(size);
  const auto options = at::TensorOptions(world.device()).dtype(at::kFloat);
  const auto rounded = [size](std::int64_t count) { return (count + size - 1) / size * size; };
  auto& group = world.all();
  return {
      {"all-reduce", 2 * share,
       [&group, options, rounded](std::int64_t count) {
         at::Tensor tensor = at::zeros({rounded(count)}, options);
         group.all_reduce(tensor, comm::ReduceOp::kSum, kMeasured).wait();
         return tensor;
       }},
      {"all-gather", share,
       [&group, options, rounded, size](std::int64_t count) {
         const at::Tensor input = at::zeros({rounded(count) / size}, options);
         at::Tensor output = at::empty({rounded(count)}, options);
         group.all_gather(output, input, kMeasured).wait();
         return output;
       }},
      {"all-to-all", share,
       [&group, options, rounded, size](std::int64_t count) {
         const at::Tensor input = at::zeros({rounded(count)}, options);
         at::Tensor output = at::empty_like(input);
         const std::vector<std::int64_t> rows(static_cast<std::size_t>(size), rounded(count) / size);
         group.all_to_all(output, input, rows, rows, kMeasured).wait();
         return output;
       }},
  };
}

/// Bytes per second in both directions between this rank and `partner`.
double pair_speed(comm::World& world, std::int64_t partner) {
  const auto options = at::TensorOptions(world.device()).dtype(at::kFloat);
  const at::Tensor sent = at::zeros({kLargeNumbers / 2}, options), received = at::empty_like(sent);
  double best = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {  // the first one also connects
    const std::int64_t begin_ns = base::monotonic_ns();
    // One sends first, or two NCCL calls would wait for each other.
    if (world.rank() < partner) {
      world.all().send(sent, partner, kMeasured).wait();
      world.all().receive(received, partner, kMeasured).wait();
    } else {
      world.all().receive(received, partner, kMeasured).wait();
      world.all().send(sent, partner, kMeasured).wait();
    }
    wait_for_device(received);
    const double seconds = static_cast<double>(base::monotonic_ns() - begin_ns) * 1e-9;
    best = std::max(best, 2 * static_cast<double>(sent.nbytes()) / seconds);
  }
  return best;
}

}  // namespace

Findings measure_collectives(comm::World& world) {
  Findings findings;
  for (const Kind& kind : kinds_of(world)) {
    const double small = seconds_of(world, [&] { return kind.call(kSmallNumbers); });
    const double large = seconds_of(world, [&] { return kind.call(kLargeNumbers); });
    const double num_bytes = 4.0 * static_cast<double>(kLargeNumbers);
    const double bandwidth = kind.bus_factor * num_bytes / large * 1e-9;
    findings.push_back({.check = "collectives",
                        .subject = kind.name,
                        .value = base::format_duration(static_cast<std::int64_t>(small * 1e9)) + " for 4 KiB, " +
                                 launch::fixed(bandwidth, 2) + " GB/s (bus) with " + base::format_bytes(num_bytes),
                        .verdict = launch::Verdict::kOk,
                        .remedy = {},
                        .data = {{"small_seconds", small},
                                 {"large_seconds", large},
                                 {"large_bytes", num_bytes},
                                 {"bus_gigabytes_per_s", bandwidth}}});
  }
  return findings;
}

Findings measure_pairs(comm::World& world, const std::vector<std::string>& hosts) {
  constexpr std::int64_t kMostRounds = 16;
  double best = 0;
  for (std::int64_t round = 0; round < std::min(launch::num_rounds(world.size()), kMostRounds); ++round) {
    const auto partner = launch::partner_of(world.rank(), world.size(), round);
    if (partner) best = std::max(best, pair_speed(world, *partner));
    world.all().barrier({"benchmark round", round});
  }
  std::vector<double> speeds(static_cast<std::size_t>(world.size()));
  speeds[static_cast<std::size_t>(world.rank())] = best * 1e-9;
  speeds = world.all().reduce_values(speeds, comm::ReduceOp::kSum, {"benchmark result"});
  return {launch::judge_speeds({.check = "pairs", .subject = {}, .unit = "GB/s", .values = speeds}, hosts)};
}

}  // namespace pharos::cli
