#include "pharos/cli/hf/verify_command.h"

#include <ATen/Context.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/cli/exit_status.h"
#include "pharos/cli/integer_option.h"
#include "pharos/comm/rank_environment.h"
#include "pharos/comm/world.h"
#include "pharos/hf/transfer/compare_tensors.h"
#include "pharos/hf/verify/verify.h"
#include "pharos/launch/attempt.h"
#include "pharos/launch/rank_process.h"
#include "pharos/launch/signals.h"
#include "pharos/lens/variables/environment.h"

namespace pharos::cli {
namespace {

struct Arguments {
  std::string folder, second, oracle;
  std::optional<double> tolerance;
  std::string device = "cpu";
  hf::VerifyLayout layout;
  bool json = false;
};

constexpr int kDifferent = 1;
constexpr std::chrono::minutes kPatience{5};  ///< of ranks for each other

void print_json(const nlohmann::json& json) {
  std::cout << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

void compare_folders(const Arguments& arguments) {
  const hf::ComparedTensors compared = hf::compare_tensors(arguments.folder, arguments.second, arguments.tolerance);
  if (arguments.json) {
    print_json(hf::to_json(compared));
  } else {
    std::cout << hf::render_differences(compared);
  }
  if (!compared.same()) set_exit_code(kDifferent);
}

at::Device device_of(const Arguments& arguments, const comm::RankEnvironment& ranks) {
  if (arguments.device == "cpu") return at::kCPU;
  if (at::hasCUDA()) return {at::kCUDA, static_cast<at::DeviceIndex>(ranks.local_rank)};
  throw base::UserError({.what = "The device cuda is not here.",
                         .why = "This build of Pharos or this machine has no CUDA.",
                         .fix = "Leave --device out to compute on the CPU."});
}

/// This process is one of the ranks, or the only one.
void verify_as_rank(const Arguments& arguments, const comm::RankEnvironment& ranks) {
  const comm::WorldOptions options{
      .device = device_of(arguments, ranks), .rendezvous_timeout = kPatience, .timeout = kPatience};
  comm::World world(ranks, options);
  hf::VerifyResult result;
  try {
    result = hf::verify(arguments.folder, arguments.oracle, world, arguments.layout);
  } catch (const std::exception&) {
    world.abandon();
    throw;
  }
  world.leave();
  if (!result.ok()) set_exit_code(kDifferent);
  if (ranks.rank != 0) return;
  if (arguments.json) {
    print_json(hf::to_json(result));
  } else {
    std::cout << hf::render_table(result);
  }
}

std::vector<std::string> words_of(const Arguments& arguments, const std::string& program) {
  std::vector<std::string> words{program, "hf", "verify", arguments.folder, "--oracle", arguments.oracle};
  const auto add = [&](const char* option, std::optional<std::int64_t> value) {
    if (value) words.insert(words.end(), {option, std::to_string(*value)});
  };
  add("--tensor-parallel", arguments.layout.tensor);
  add("--pipeline-parallel", arguments.layout.pipeline);
  add("--expert-parallel", arguments.layout.expert);
  add("--expert-tensor-parallel", arguments.layout.expert_tensor);
  add("--data-parallel", arguments.layout.data);
  if (arguments.layout.sequence_parallel) words.emplace_back("--sequence-parallel");
  words.insert(words.end(), {"--device", arguments.device});
  if (arguments.json) words.emplace_back("--json");
  return words;
}

/// Ranks that compared leave with 0 or, all of them, with 1.
int verdict_of(const std::vector<launch::RankEnd>& ends) {
  const bool all_compared = std::all_of(ends.begin(), ends.end(), [](const launch::RankEnd& end) {
    return end.signal == 0 && (end.code == 0 || end.code == kDifferent);
  });
  return all_compared ? ends.front().code : launch::exit_code_of(ends);
}

/// This process starts the ranks and waits for them; the first one prints.
void verify_on_ranks(const Arguments& arguments, std::int64_t num_ranks) {
  hf::check_verify(arguments.folder, arguments.oracle, arguments.layout);
  launch::SignalQueue signals;
  launch::Attempt attempt(signals, {});
  {
    const launch::ListenSocket socket(0);
    const std::filesystem::path program = launch::own_program();
    const std::vector<std::string> words = words_of(arguments, program.string());
    for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
      const launch::RankPlace place{
          .rank = rank, .num_ranks = num_ranks, .port = socket.port(), .listen_descriptor = socket.descriptor()};
      attempt.start(rank, {.program = program,
                           .arguments = words,
                           .variables = launch::rank_variables(launch::own_variables(), place),
                           .inherit_descriptor = rank == 0 ? socket.descriptor() : -1,
                           .signal_mask = signals.mask_before()});
    }
  }
  set_exit_code(verdict_of(attempt.run()));
}

void compare_with_oracle(const Arguments& arguments) {
  const comm::RankEnvironment ranks = comm::read_rank_environment(lens::ProcessEnvironment());
  const std::int64_t num_ranks = arguments.layout.world_size();
  if (ranks.world_size == num_ranks) return verify_as_rank(arguments, ranks);
  if (ranks.world_size == 1) return verify_on_ranks(arguments, num_ranks);
  throw base::UserError({.what = "The layout has " + std::to_string(num_ranks) + " ranks, the job " +
                                 std::to_string(ranks.world_size) + ".",
                         .where = "environment variables " + ranks.source,
                         .fix = "Start as many ranks, or one process, which then starts them."});
}

/// What is wrong with `text` as a tolerance.
std::string not_negative(const std::string& text) {
  double number = -1;
  const bool is_tolerance = CLI::detail::lexical_cast(text, number) && std::isfinite(number) && number >= 0;
  return is_tolerance ? "" : "'" + text + "' is not a number from 0";
}

void add_layout(CLI::App& command, Arguments& arguments) {
  const auto add = [&](const char* name, auto& value, const char* text) {
    command.add_option(name, value, text)->check(whole_number<std::int64_t>(1, 4096));
  };
  add("--tensor-parallel", arguments.layout.tensor, "Ranks that divide each layer; as many processes are started");
  add("--pipeline-parallel", arguments.layout.pipeline, "Ranks that divide the layers among them");
  add("--expert-parallel", arguments.layout.expert, "Ranks that divide the experts among them");
  add("--expert-tensor-parallel", arguments.layout.expert_tensor, "Ranks that divide each expert (default: 1)");
  add("--data-parallel", arguments.layout.data,
      "Ranks that divide the rows of a batch (default: as few as the experts need)");
  command.add_flag("--sequence-parallel", arguments.layout.sequence_parallel,
                   "With --tensor-parallel: divide tokens between layers too (with experts always)");
}

}  // namespace

void add_verify_command(CLI::App& hf) {
  CLI::App* command = hf.add_subcommand(
      "verify",
      "Compare two folders tensor by tensor, or what Pharos computes from a folder with a reference: logits, loss, "
      "gradients, optimizer steps");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("FOLDER", arguments->folder, "Folder with config.json and *.safetensors")->required();
  CLI::Option* second = command->add_option("SECOND", arguments->second, "Folder that is compared with it");
  CLI::Option* oracle = command->add_option("--oracle", arguments->oracle,
                                            "oracle.safetensors, with trajectory.json beside it or in FOLDER");
  oracle->excludes(second);
  command
      ->add_option("--tolerance", arguments->tolerance,
                   "Largest absolute difference of two values (default: every bit must agree)")
      ->check(CLI::Validator(not_negative, "NUMBER"))
      ->needs(second);
  command->add_option("--device", arguments->device, "Where to compute: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  add_layout(*command, *arguments);
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->footer(
      "Exit code 0: all the same, or within tolerance; 1: some are not; 2: a file is missing, damaged or of another "
      "model.");
  command->callback([arguments] {
    if (!arguments->oracle.empty()) return compare_with_oracle(*arguments);
    if (!arguments->second.empty()) return compare_folders(*arguments);
    throw base::UserError({.what = "Nothing to compare '" + arguments->folder + "' with.",
                           .where = "command line",
                           .fix = "Name a second folder, or a reference with --oracle."});
  });
}

}  // namespace pharos::cli
