#include "pharos/comm/rank_environment.h"

#include <charconv>
#include <limits>

#include "pharos/base/error.h"
#include "pharos/base/node_list.h"

namespace pharos::comm {
namespace {

/// SLURM numbers the batch script and the shell of `salloc` as steps from here on.
constexpr std::int64_t kFirstSpecialStep = 4294967290;

class Reader {
 public:
  explicit Reader(const lens::Environment& environment) : environment_(environment) {}

  std::optional<std::string> text(const std::string& name) const { return environment_.get_nonblank(name); }

  std::optional<std::int64_t> integer(const std::string& name, std::int64_t least, std::int64_t most) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    std::int64_t number = 0;
    const char* end = value->data() + value->size();
    const auto [stop, status] = std::from_chars(value->data(), end, number);
    if (status == std::errc() && stop == end && number >= least && number <= most) return number;
    throw base::UserError({.what = name + " = \"" + *value + "\" is not a whole number from " + std::to_string(least) +
                                   (most == kMost ? "" : " to " + std::to_string(most)) + ".",
                           .where = "environment",
                           .fix = "Correct the variable, or unset it and start the ranks with a launcher."});
  }

  std::int64_t needed_integer(const std::string& name, const std::string& other, std::int64_t least) const {
    if (const auto number = integer(name, least, kMost)) return *number;
    throw base::UserError({.what = other + " is set, but " + name + " is not.",
                           .where = "environment",
                           .why = "A rank must know its number and how many ranks there are.",
                           .fix = "Set both (torchrun and `pharos train --nproc` do), or none for a single process."});
  }

  static constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

 private:
  const lens::Environment& environment_;
};

void check_below(const std::string& name, std::int64_t value, const std::string& limit_name, std::int64_t limit) {
  if (value < limit) return;
  throw base::UserError({.what = name + " = " + std::to_string(value) + " is not below " + limit_name + " = " +
                                 std::to_string(limit) + ".",
                         .where = "environment",
                         .fix = "Ranks are numbered from 0 to " + std::to_string(limit - 1) + "."});
}

void read_master(const Reader& reader, RankEnvironment& environment) {
  if (const auto address = reader.text("MASTER_ADDR")) environment.master_address = *address;
  if (const auto port = reader.integer("MASTER_PORT", 1, 65535)) {
    environment.master_port = static_cast<std::uint16_t>(*port);
  }
  if (environment.rank != 0) return;
  if (const auto socket = reader.integer("PHAROS_LISTEN_SOCKET", 0, Reader::kMost)) {
    environment.listen_socket = static_cast<int>(*socket);
  }
}

RankEnvironment from_torchrun(const Reader& reader) {
  RankEnvironment environment;
  environment.source = "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT";
  environment.rank = reader.needed_integer("RANK", "WORLD_SIZE", 0);
  environment.world_size = reader.needed_integer("WORLD_SIZE", "RANK", 1);
  check_below("RANK", environment.rank, "WORLD_SIZE", environment.world_size);
  environment.local_world_size = reader.integer("LOCAL_WORLD_SIZE", 1, Reader::kMost).value_or(environment.world_size);
  const auto local_rank = reader.integer("LOCAL_RANK", 0, Reader::kMost);
  if (!local_rank && environment.local_world_size != environment.world_size) {
    throw base::UserError({.what = "LOCAL_WORLD_SIZE is set, but LOCAL_RANK is not.",
                           .where = "environment",
                           .why = "On several nodes the rank does not tell the number within the node.",
                           .fix = "Set LOCAL_RANK (torchrun does)."});
  }
  environment.local_rank = local_rank.value_or(environment.rank);
  check_below("LOCAL_RANK", environment.local_rank, "LOCAL_WORLD_SIZE", environment.local_world_size);
  for (const auto* name : {"MASTER_ADDR", "MASTER_PORT"}) {
    if (environment.world_size == 1 || reader.text(name)) continue;
    throw base::UserError(
        {.what = "WORLD_SIZE = " + std::to_string(environment.world_size) + ", but " + name + " is not set.",
         .where = "environment",
         .why = "The ranks meet at rank 0's address and port.",
         .fix = "Set MASTER_ADDR and MASTER_PORT to the same values for all ranks."});
  }
  read_master(reader, environment);
  return environment;
}

std::int64_t slurm_tasks_per_node(const Reader& reader, std::int64_t world_size) {
  if (const auto given = reader.integer("SLURM_NTASKS_PER_NODE", 1, Reader::kMost)) return *given;
  for (const auto* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {  // "4(x2),3"
    std::int64_t number = 0;
    const auto text = reader.text(name).value_or("");
    if (std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc() && number > 0) return number;
  }
  return world_size;
}

bool is_slurm_step(const Reader& reader) {
  if (!reader.text("SLURM_PROCID")) return false;
  const auto step = reader.integer("SLURM_STEP_ID", 0, std::numeric_limits<std::uint32_t>::max());
  return step && *step < kFirstSpecialStep && reader.text("SLURM_NTASKS").value_or("1") != "1";
}

RankEnvironment from_slurm(const Reader& reader) {
  RankEnvironment environment;
  environment.source = "SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_STEP_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID";
  environment.rank = reader.needed_integer("SLURM_PROCID", "SLURM_NTASKS", 0);
  environment.world_size = reader.needed_integer("SLURM_NTASKS", "SLURM_PROCID", 1);
  check_below("SLURM_PROCID", environment.rank, "SLURM_NTASKS", environment.world_size);
  environment.local_rank = reader.integer("SLURM_LOCALID", 0, Reader::kMost).value_or(environment.rank);
  environment.local_world_size = slurm_tasks_per_node(reader, environment.world_size);
  auto hosts = reader.text("SLURM_STEP_NODELIST");
  if (!hosts) hosts = reader.text("SLURM_JOB_NODELIST");
  if (!hosts && !reader.text("MASTER_ADDR")) {
    throw base::UserError({.what = "SLURM_NTASKS = " + std::to_string(environment.world_size) +
                                   ", but neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST is set.",
                           .where = "environment",
                           .why = "Rank 0, where all ranks meet, runs on the first host of that list.",
                           .fix = "Start the ranks with srun, or set MASTER_ADDR and MASTER_PORT."});
  }
  if (hosts) environment.master_address = base::expand_node_list(*hosts).front();
  // Below the range from which the kernel takes ports of connections; different for jobs and steps that share a node.
  constexpr std::int64_t kFirstPort = 15000;
  constexpr std::int64_t kNumPorts = 15000;
  const auto job = reader.integer("SLURM_JOB_ID", 0, std::numeric_limits<std::uint32_t>::max()).value_or(0);
  const auto step = reader.integer("SLURM_STEP_ID", 0, std::numeric_limits<std::uint32_t>::max()).value_or(0);
  environment.master_port = static_cast<std::uint16_t>(kFirstPort + (job * 31 + step) % kNumPorts);
  read_master(reader, environment);
  return environment;
}

}  // namespace

RankEnvironment read_rank_environment(const lens::Environment& environment) {
  const Reader reader(environment);
  if (reader.text("RANK") || reader.text("WORLD_SIZE")) return from_torchrun(reader);
  if (is_slurm_step(reader)) return from_slurm(reader);
  RankEnvironment alone;
  alone.source = "one process";
  return alone;
}

}  // namespace pharos::comm
