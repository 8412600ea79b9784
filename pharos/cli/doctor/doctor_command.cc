#include "pharos/cli/doctor/doctor_command.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/text.h"
#include "pharos/cli/doctor/benchmarks.h"
#include "pharos/cli/doctor/doctor_environment.h"
#include "pharos/cli/doctor/doctor_ranks.h"
#include "pharos/cli/doctor/doctor_report.h"
#include "pharos/cli/doctor/job_checks.h"
#include "pharos/cli/exit_status.h"
#include "pharos/cli/integer_option.h"
#include "pharos/cli/text_option.h"
#include "pharos/comm/rank_environment.h"
#include "pharos/config/recipe/recipe.h"
#include "pharos/launch/doctor/bounded.h"
#include "pharos/launch/doctor/checks.h"
#include "pharos/launch/doctor/image/image.h"
#include "pharos/launch/doctor/log/nccl_log.h"
#include "pharos/launch/rank_process.h"

namespace pharos::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSecondNs = 1'000'000'000;

std::string own_host(const lens::Environment& environment) {
  if (const auto name = environment.get_nonblank("SLURMD_NODENAME")) return *name;
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// As std::filesystem::temp_directory_path() looks for it, but whether it is there or not.
std::string temporary_folder(const lens::Environment& environment) {
  for (const char* name : {"TMPDIR", "TMP", "TEMP", "TEMPDIR"}) {
    if (const auto folder = environment.get_nonempty(name)) return *folder;
  }
  return "/tmp";
}

std::chrono::milliseconds milliseconds_until(std::int64_t deadline_ns) {
  const auto left = std::chrono::nanoseconds(deadline_ns - base::monotonic_ns());
  return std::max(std::chrono::milliseconds(1000), std::chrono::duration_cast<std::chrono::milliseconds>(left));
}

/// Of `only`, those that are (or are not) checks of one node. All of a kind are chosen by an empty list, so nullopt
/// says that none is.
std::optional<std::vector<std::string>> chosen_node_checks(const std::vector<std::string>& only, bool wants_all) {
  std::vector<std::string> names;
  for (const launch::Check& check : launch::node_checks()) {
    const bool is_named = std::find(only.begin(), only.end(), check.name) != only.end();
    if ((only.empty() || is_named) && (wants_all || check.is_benchmark)) names.emplace_back(check.name);
  }
  if (names.empty()) return std::nullopt;
  return names;
}

/// A note for each option that none of the chosen checks reads.
launch::Findings unread_options(const DoctorArguments& arguments) {
  struct Option {
    const char* name;
    bool is_given;
    std::vector<std::string> checks;  ///< that read it
  };
  const std::vector<Option> options = {
      {"--gpus", arguments.num_gpus.has_value(), {"gpu", "variables"}},
      {"--shared", !arguments.shared_folder.empty(), {"shared", "token"}},
      {"--run-dir", arguments.run_folder != DoctorArguments().run_folder, {"disk"}},
      {"--device", arguments.device != DoctorArguments().device, {"gemm", "bandwidth", "collectives", "pairs"}}};
  launch::Findings notes;
  for (const Option& option : options) {
    const auto is_read = [&](const std::string& name) {
      return std::find(option.checks.begin(), option.checks.end(), name) != option.checks.end();
    };
    if (!option.is_given || arguments.only.empty() ||
        std::any_of(arguments.only.begin(), arguments.only.end(), is_read))
      continue;
    notes.push_back({.check = "options",
                     .subject = option.name,
                     .value = "no check of --only reads it",
                     .verdict = launch::Verdict::kNote,
                     .remedy = "Its checks: " + base::join(option.checks, ", ") + ".",
                     .data = {}});
  }
  return notes;
}

class Doctor {
 public:
  explicit Doctor(const DoctorArguments& arguments)
      : arguments_(arguments),
        ranks_(comm::read_rank_environment(environment_)),
        deadline_ns_(base::monotonic_ns() + arguments.timeout_s * kSecondNs),
        report_(arguments.json_path) {
    node_.root = arguments.system_root;
    node_.host = own_host(environment_);
    node_.num_gpus = arguments.num_gpus;
    node_.has_other_ranks = ranks_.local_world_size > 1;
    node_.shared_folder = arguments.shared_folder;
    node_.run_folder = arguments.run_folder;
    node_.temporary_folder = temporary_folder(environment_);
    if (const auto library = environment_.get_nonblank("PHAROS_NVML")) node_.nvml_library = *library;
    node_.versions = {{"pharos", PHAROS_VERSION}, {"libtorch", libtorch_version()}};
    node_.environment = &environment_;
  }

  void examine_nodes() {
    require_something_to_do();
    if (ranks_.rank == 0) report_.add(unread_options(arguments_));
    const std::string device = choose_device();
    launch::RankReport own{.rank = ranks_.rank, .host = node_.host, .device = device, .findings = node_part(device)};
    if (is_several()) {
      report_.watch(deadline_ns_, is_first_of_node());
      job_part(own);
      report_.stop_watching();
    } else {
      report_.add(own.findings);
    }
    finish(ranks_.rank == 0);
  }

  void examine_image() {
    const fs::path beside = launch::own_program().parent_path().parent_path() / "share/pharos/versions.env";
    const fs::path table = arguments_.versions_path.empty() ? beside : fs::path(arguments_.versions_path);
    launch::ImageOptions options{.versions = {},
                                 .libtorch_version = libtorch_version(),
                                 .num_recipes = config::list_recipes().size(),
                                 .compute = [] {
                                   if (at::mm(at::ones({2, 2}), at::ones({2, 2})).sum().item<float>() != 8)
                                     throw std::runtime_error("a product of two matrices is wrong");
                                 }};
    if (fs::exists(table) || !arguments_.versions_path.empty()) {
      options.versions = launch::read_version_table(table);
    } else {
      report_.add({{.check = "image",
                    .subject = "versions",
                    .value = "there is no table " + table.string(),
                    .verdict = launch::Verdict::kNote,
                    .remedy = "Name the table the image was built from with --versions.",
                    .data = {},
                    .host = node_.host}});
    }
    report_.add(launch::check_image(node_, options, deadline_ns_));
    finish(true);
  }

  void examine_logs() {
    launch::NcclLog log;
    for (const std::string& path : arguments_.logs) launch::read_nccl_log(base::read_regular_file(path), log);
    report_.add(launch::judge_nccl_log(log, arguments_.expects_gin));
    finish(true);
  }

 private:
  bool is_several() const { return ranks_.world_size > 1; }
  bool is_first_of_node() const { return ranks_.local_rank == 0; }

  void require_something_to_do() const {
    if (is_several() || chosen_node_checks(arguments_.only, true)) return;
    throw base::UserError({.what = "The checks of --only need several ranks.",
                           .where = "command line",
                           .fix = "Start them with --nproc N, or run this command under srun or torchrun."});
  }

  /// A child asks the driver: a process that has asked cannot make children that compute.
  std::string choose_device() {
    if (arguments_.device != "auto") return arguments_.device;
    launch::BoundedCall call([this]() -> nlohmann::json { return find_device(ranks_.local_rank); });
    const launch::BoundedResult result = call.wait(std::min(deadline_ns_, base::monotonic_ns() + check_limit_ns()));
    return result.end == launch::BoundedResult::End::kDone ? result.value.get<std::string>() : "cpu";
  }

  std::int64_t check_limit_ns() const { return arguments_.check_timeout_s * kSecondNs; }

  launch::Findings node_part(const std::string& device) {
    const auto names = chosen_node_checks(arguments_.only, is_first_of_node());
    if (!names) return {};
    const std::optional<std::int64_t> local_rank = is_several() ? std::optional(ranks_.local_rank) : std::nullopt;
    node_.benchmarks = {.gemm = [device, local_rank] { return measure_gemm(device, local_rank); },
                        .bandwidth = [device, local_rank] { return measure_bandwidth(device, local_rank); }};
    launch::Findings findings =
        launch::run_node_checks(node_, *names, {.deadline_ns = deadline_ns_, .check_limit_ns = check_limit_ns()});
    for (launch::Finding& finding : findings) {
      const bool is_of_rank = is_several() && (finding.check == "gemm" || finding.check == "bandwidth");
      if (is_of_rank) finding.subject += " (rank " + std::to_string(ranks_.rank) + ")";
    }
    return findings;
  }

  void job_part(const launch::RankReport& own) {
    if (is_first_of_node()) report_.add(own.findings);
    const JobCheckOptions options{
        .ranks = ranks_,
        .arrival_limit = std::min<std::chrono::milliseconds>(std::chrono::seconds(arguments_.arrival_timeout_s),
                                                             milliseconds_until(deadline_ns_ - kSecondNs)),
        .call_limit = milliseconds_until(deadline_ns_),
        .shared_folder = arguments_.shared_folder,
        .only = arguments_.only};
    bool has_met = false;
    const launch::Verdict verdict = run_job_checks(
        options, own, [&](const launch::Findings& findings) { report_.add(findings); }, has_met);
    // Where rank 0 has all findings it alone shows them.
    if (!has_met && ranks_.rank != 0 && is_first_of_node()) report_.show();
    if (verdict == launch::Verdict::kFailure) set_exit_code(exit_code_of(verdict));
  }

  void finish(bool may_show) {
    if (may_show) report_.show();
    if (report_.has_failure()) set_exit_code(exit_code_of(launch::Verdict::kFailure));
  }

  const DoctorArguments& arguments_;
  lens::ProcessEnvironment environment_;
  comm::RankEnvironment ranks_;
  std::int64_t deadline_ns_;
  launch::Node node_;
  DoctorReport report_;
};

void list_checks() {
  const auto print = [](const std::string& name, const std::string& description) {
    std::cout << "  " << name << std::string(14 - std::min<std::size_t>(13, name.size()), ' ') << description << "\n";
  };
  std::cout << "of each node\n";
  for (const launch::Check& check : launch::node_checks()) print(check.name, check.description);
  std::cout << "of the job\n";
  for (const auto& [name, description] : launch::rank_checks()) print(name, description);
}

void run_doctor(const DoctorArguments& arguments) {
  if (!arguments.profile.empty()) restart_with_profile(arguments.profile);
  if (arguments.lists) return list_checks();
  launch::require_known_checks(arguments.only);
  if (arguments.num_ranks > 0) return set_exit_code(examine_on_ranks(arguments));
  Doctor doctor(arguments);
  if (!arguments.logs.empty()) return doctor.examine_logs();
  if (arguments.is_image) return doctor.examine_image();
  doctor.examine_nodes();
}

void add_options_of_checks(CLI::App& command, DoctorArguments& arguments) {
  command.add_option("--only", arguments.only, "Checks to make, for example gpu,network (default: all; see --list)")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_flag("--list", arguments.lists, "List the checks");
  command.add_option("--gpus", arguments.num_gpus, "GPUs that each node must have")
      ->check(whole_number<std::int64_t>(0, 1024));
  command
      .add_option("--shared", arguments.shared_folder,
                  "Folder that all nodes share: its speed, and that it is the same")
      ->check(filled_text());
  command.add_option("--run-dir", arguments.run_folder, "Folder of the run, whose disk is looked at")
      ->check(filled_text())
      ->capture_default_str();
  command.add_option("--profile", arguments.profile,
                     "With the variables that pharos launch sets: efa, ib or tcp (default: as the environment is)");
  command.add_option("--device", arguments.device, "What computes and communicates: auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command
      .add_option("--system-root", arguments.system_root,
                  "Folder that /proc, /sys and /dev are read below (a recorded node)")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
}

void add_options_of_time(CLI::App& command, DoctorArguments& arguments) {
  const auto seconds = whole_number<std::int64_t>(1, 86400);
  command.add_option("--timeout", arguments.timeout_s, "Seconds for everything")->check(seconds)->capture_default_str();
  command.add_option("--check-timeout", arguments.check_timeout_s, "Seconds for one check")
      ->check(seconds)
      ->capture_default_str();
  command.add_option("--arrival-timeout", arguments.arrival_timeout_s, "Seconds until all ranks must have come")
      ->check(seconds)
      ->capture_default_str();
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Check this node, and with several ranks all nodes: hardware, versions, network, folders, speed");
  const auto arguments = std::make_shared<DoctorArguments>();
  add_options_of_checks(*command, *arguments);
  add_options_of_time(*command, *arguments);
  CLI::Option* nproc = command->add_option("--nproc", arguments->num_ranks, "Start so many ranks on this machine")
                           ->check(whole_number<std::int64_t>(1, 4096));
  command->add_option("--json", arguments->json_path, "Write the findings as JSON to a file, or with - to the output")
      ->check(filled_text());
  CLI::Option* log =
      command->add_option("--log", arguments->logs, "Logs of NCCL to judge (NCCL_DEBUG=INFO), nothing else")
          ->excludes(nproc);
  command->add_flag("--expect-gin", arguments->expects_gin, "With --log: a failure unless GIN came up")->needs(log);
  CLI::Option* image =
      command->add_flag("--image", arguments->is_image, "Check a container image, without GPUs: nothing else")
          ->excludes(nproc)
          ->excludes(log);
  command->add_option("--versions", arguments->versions_path, "With --image: the table NAME=VERSION it was built from")
      ->needs(image);
  command->footer(
      "Exit code 0: nothing must be fixed (there may be warnings); 2: something must be fixed before training.");
  command->callback([arguments] { run_doctor(*arguments); });
}

}  // namespace pharos::cli
