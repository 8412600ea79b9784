#include "pharos/cli/launch/launch_request.h"

#include <ATen/detail/CUDAHooksInterface.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/subprocess.h"
#include "pharos/base/text.h"
#include "pharos/cli/run_source.h"
#include "pharos/config/resolve.h"
#include "pharos/launch/cluster/named_paths.h"
#include "pharos/launch/rank_process.h"
#include "pharos/launch/slurm/allocation.h"
#include "pharos/launch/slurm/job_limits.h"
#include "pharos/launch/slurm/job_script.h"
#include "pharos/launch/slurm/mounts.h"
#include "pharos/launch/slurm/preflight.h"
#include "pharos/lens/variables/scalar.h"
#include "pharos/plan/plan.h"
#include "pharos/train/run_folder.h"

namespace pharos::cli {
namespace {

namespace fs = std::filesystem;
namespace slurm = launch::slurm;

constexpr const char* kDefaultImage = "pharos+latest.sqsh";
constexpr const char* kDefaultMounts = ".:/workspace/pharos,/fsx:/fsx";

std::int64_t whole_variable(const lens::Environment& environment, const std::string& name, std::int64_t fallback,
                            std::int64_t most) {
  const auto text = environment.get_nonblank(name);
  if (!text) return fallback;
  const auto number = lens::parse_integer(*text);
  if (number && *number >= 1 && *number <= most) return *number;
  throw base::UserError(
      {.what = name + " = \"" + *text + "\" is not a whole number from 1 to " + std::to_string(most) + ".",
       .where = "environment",
       .fix = "Correct or unset it."});
}

/// Same name for the same content: an image that was built anew is unpacked anew.
std::string container_name_of(const fs::path& image) {
  std::error_code ignored;
  const auto size = fs::file_size(image, ignored);
  const auto written = fs::last_write_time(image, ignored).time_since_epoch().count();
  std::string name = image.stem().string();
  std::replace_if(
      name.begin(), name.end(), [](unsigned char letter) { return std::isalnum(letter) == 0 && letter != '-'; }, '_');
  const auto mix = static_cast<std::uint64_t>(written) ^ (static_cast<std::uint64_t>(size) << 20);
  std::ostringstream text;
  text << name << "-" << std::hex << mix;
  return text.str();
}

class Maker {
 public:
  Maker(const LaunchOptions& options, const lens::Environment& environment)
      : options_(options), environment_(environment) {}

  CheckedRequest make() {
    read_sizes();
    read_container();
    read_words();
    check_batch_options();
    slurm::check_sbatch_arguments(result_.slurm, problems_);
    slurm::check_limits(result_.slurm, problems_);
    note_early_signal();
    if (view_) slurm::check_recipe_path(options_.recipe, *view_, problems_);
    const auto resolved = resolve();
    if (resolved) complete(*resolved);
    check_slurm(resolved);
    if (in_allocation_) slurm::check_allocation(result_.slurm, read_allocation(), problems_);
    if (problems_.empty()) collect([this] { slurm::batch_script(result_.slurm); });  // has it words it cannot carry?
    slurm::throw_if_any(problems_);
    // Made last, so that two launches of one second do not share it, and what is refused leaves nothing.
    if (options_.run_folder.empty() && !options_.is_dry_run)
      place_run_folder(train::make_default_run_folder(name_, base::wall_ns()));
    return result_;
  }

 private:
  launch::JobRequest& job() { return result_.slurm.job; }
  void note(const std::string& text) { result_.notes.push_back(text); }

  /// Runs `action`; what it finds wrong is one of the problems.
  template <typename Action>
  void collect(Action action) {
    try {
      action();
    } catch (const base::UserError& error) {
      slurm::add_problems(problems_, error);
    }
  }

  void read_num_nodes() {
    in_allocation_ = is_in_allocation(environment_);
    const std::int64_t allocated = in_allocation_ ? whole_variable(environment_, "SLURM_JOB_NUM_NODES", 1, 100'000) : 1;
    job().num_nodes = options_.num_nodes.value_or(allocated);
    num_allocated_ = allocated;
    if (!in_allocation_ || job().num_nodes == allocated) return;
    // The ranks meet at the first node of the allocation.
    if (job().num_nodes < allocated) result_.slurm.srun_arguments.emplace_back("--relative=0");
    if (job().num_nodes > allocated)
      problems_.push_back({.what = std::to_string(job().num_nodes) + " nodes are asked for; this allocation has " +
                                   std::to_string(allocated) + ".",
                           .where = "--nodes",
                           .fix = "Leave out --nodes, or leave the allocation to submit a job."});
  }

  void read_sizes() {
    collect([this] { read_num_nodes(); });
    collect([this] {
      job().gpus_per_node = options_.gpus_per_node.value_or(whole_variable(environment_, "GPUS_PER_NODE", 8, 4096));
    });
    collect([this] {
      job().master_port = static_cast<std::uint16_t>(whole_variable(environment_, "MASTER_PORT", 29500, 65535));
      // The shell of the job reads the variable itself.
      const std::string text = environment_.get_nonblank("MASTER_PORT").value_or("29500");
      if (text == std::to_string(job().master_port)) return;
      throw base::UserError({.what = "MASTER_PORT = \"" + text + "\" is not a plain number.",
                             .where = "environment",
                             .fix = "Write MASTER_PORT=" + std::to_string(job().master_port) + "."});
    });
    collect([this] { job().environment.profile = launch::parse_network_profile(options_.profile); });
  }

  void read_container() {
    if (options_.has_no_container) return;
    auto image = options_.image ? options_.image : environment_.get_nonblank("SQSH");
    const bool asks_for_none = !image && environment_.get("SQSH");  // SQSH= is an answer too
    if (!image && !asks_for_none && fs::exists(kDefaultImage)) image = kDefaultImage;
    if (image && image->empty()) {
      problems_.push_back({.what = "The name of the image is empty.",
                           .where = "--image",
                           .fix = "Name a squashfs file, or add --no-container."});
      return;
    }
    if (!image) {
      note((asks_for_none ? "$SQSH is empty" : "no --image, no $SQSH and no ./" + std::string(kDefaultImage)) +
           ": the tasks run Pharos of the nodes.");
      if (options_.mounts)
        problems_.push_back({.what = "--mounts is given, but there is no image.",
                             .where = "--mounts",
                             .fix = "Name the image with --image or $SQSH, or leave out --mounts."});
      return;
    }
    launch::ContainerRequest container{.image = fs::absolute(*image).lexically_normal().string(), .mounts = {}};
    const auto given = options_.mounts ? options_.mounts : environment_.get_nonblank("MOUNT");
    collect([&] { mounts_ = slurm::parse_mounts(given.value_or(kDefaultMounts), fs::current_path()); });
    if (!given) {
      std::erase_if(mounts_, [this](const slurm::Mount& mount) {
        if (fs::exists(mount.source)) return false;
        note("the default mount " + mount.text() + " is left out: " + mount.source.string() + " does not exist.");
        return true;
      });
    }
    slurm::check_container(container, mounts_, problems_);
    for (const slurm::Mount& mount : mounts_) container.mounts.push_back(mount.text());
    view_.emplace(mounts_, fs::current_path());
    container.work_folder = view_->work_folder().string();
    container.name = options_.container_name.empty() ? container_name_of(container.image) : options_.container_name;
    job().container = container;
  }

  void read_words() {
    slurm::SlurmRequest& request = result_.slurm;
    const auto given = [this](const std::string& option, const char* variable) {
      return option.empty() ? environment_.get_nonblank(variable).value_or("") : option;
    };
    request.partition = given(options_.partition, in_allocation_ ? "SLURM_JOB_PARTITION" : "SBATCH_PARTITION");
    request.account = options_.account;
    request.qos = options_.qos;
    request.constraint = options_.constraint;
    request.time = in_allocation_ ? options_.time : given(options_.time, "SBATCH_TIMELIMIT");
    request.array = options_.array;
    request.mpi = options_.mpi;
    request.signal = options_.signal;
    request.variables = options_.variables;
    request.srun_arguments.insert(request.srun_arguments.end(), options_.srun_arguments.begin(),
                                  options_.srun_arguments.end());
    request.sbatch_arguments = options_.sbatch_arguments;
    request.is_requeued = options_.is_requeued;
    request.max_requeues = options_.max_requeues.value_or(request.max_requeues);
    request.is_chained = options_.chain_length > 1;
    request.host_program = launch::own_program();
    job().recipe = options_.recipe;
    job().train_options = options_.train_arguments;
    job().uses_nsys = options_.uses_nsys;
    job().program = !options_.program.empty() ? options_.program
                    : job().container         ? "pharos"
                                              : request.host_program.string();
    for (const std::string& name : options_.variables) {
      if (!launch::is_shell_name(name)) {
        problems_.push_back({.what = "'" + name + "' is no name of a variable.",
                             .where = "--env",
                             .fix = "Give one name, several with several --env."});
        continue;
      }
      if (environment_.get(name)) continue;
      problems_.push_back({.what = "The variable " + name + " is not set.",
                           .where = "--env " + name,
                           .fix = "Set it, or leave out the option."});
    }
  }

  /// What only sbatch can do is not passed over where srun starts at once.
  void check_batch_options() {
    collect([this] {
      if (!options_.array.empty()) first_task_ = slurm::first_of_array(options_.array);
    });
    if (options_.max_requeues && !options_.is_requeued) {
      problems_.push_back({.what = "--max-requeues is given without --requeue.",
                           .where = "--max-requeues",
                           .why = "The job would not go back into the queue.",
                           .fix = "Add --requeue, or leave it out."});
    }
    if (!in_allocation_) return;
    const LaunchOptions none;
    const std::pair<const char*, bool> given[] = {{"--time", options_.time != none.time},
                                                  {"--account", options_.account != none.account},
                                                  {"--partition", options_.partition != none.partition},
                                                  {"--qos", options_.qos != none.qos},
                                                  {"--constraint", options_.constraint != none.constraint},
                                                  {"--array", options_.array != none.array},
                                                  {"--job-name", options_.job_name != none.job_name},
                                                  {"--signal", options_.signal != none.signal},
                                                  {"--sbatch-arg", options_.sbatch_arguments != none.sbatch_arguments},
                                                  {"--requeue", options_.is_requeued},
                                                  {"--max-requeues", options_.max_requeues.has_value()},
                                                  {"--chain", options_.chain_length != none.chain_length},
                                                  {"--wait", options_.waits}};
    std::vector<std::string> names;
    for (const auto& [name, is_given] : given) {
      if (is_given) names.emplace_back(name);
    }
    if (names.empty()) return;
    problems_.push_back(
        {.what = base::join(names, ", ") + (names.size() == 1 ? " is" : " are") + " for jobs of sbatch.",
         .where = "command line",
         .why = "This is an allocation that is running already: srun starts the ranks in it at once.",
         .fix = "Leave them out, or launch from outside of the allocation."});
  }

  /// Overrides as checked here: of an array those of its first task.
  std::vector<std::string> checked_overrides() const {
    std::vector<std::string> overrides = job_overrides_;
    if (first_task_.empty()) return overrides;
    for (std::string& word : overrides) {
      for (std::size_t at = 0; (at = word.find("%a", at)) != std::string::npos; at += first_task_.size())
        word.replace(at, 2, first_task_);
    }
    return overrides;
  }

  /// Turns on what a launched run needs, unless recipe or user have said something about it.
  void add_defaults() {
    job_overrides_ = options_.overrides;
    const config::ResolvedConfig resolved =
        config::resolve({.recipe = options_.recipe, .overrides = checked_overrides()});
    const auto add = [&](const std::string& field) {
      if (!resolved.is_explicit(field)) job_overrides_.insert(job_overrides_.begin(), field + "=true");
    };
    add("train.exit_signal_handler");
    if (!options_.uses_nsys) return;
    add("profiling.use_nsys_profiler");
    if (resolved.is_explicit("profiling.use_nsys_profiler") && !resolved.config.profiling.use_nsys_profiler) {
      problems_.push_back({.what = "--nsys is given, but " + resolved.describe("profiling.use_nsys_profiler") + ".",
                           .where = "--nsys",
                           .why = "Nsight Systems would wait for a window that never opens.",
                           .fix = "Leave out one of the two."});
    }
  }

  std::optional<config::ResolvedConfig> resolve() {
    std::optional<config::ResolvedConfig> resolved;
    if (options_.recipe.empty()) {
      problems_.push_back({.what = "No recipe was given.",
                           .where = "command line",
                           .fix = "Name one, for example `pharos launch quickstart`."});
      return resolved;
    }
    collect([&] {
      add_defaults();
      resolved = prepare();
    });
    job().overrides = job_overrides_;
    return resolved;
  }

  /// Without the weights' config.json the model has no shape: what is wrong with the rest is still said, not what
  /// follows from that.
  std::optional<config::ResolvedConfig> prepare() {
    try {
      return config::prepare({.recipe = options_.recipe, .overrides = checked_overrides()},
                             job().num_nodes * job().gpus_per_node, config::Purpose::kTrain,
                             [this](config::ResolvedConfig& partial) { complete_partial(partial); });
    } catch (const config::ConfigErrors& errors) {
      if (is_model_known_) throw;
      std::vector<config::Problem> others = errors.problems();
      std::erase_if(others, [](const config::Problem& problem) {
        return problem.field.starts_with("model.") || problem.field.starts_with("tokenizer.");
      });
      config::throw_if_any(others);
      return std::nullopt;
    }
  }

  /// Reads the files of the configuration where this machine has them.
  void complete_partial(config::ResolvedConfig& partial) {
    const bool is_readable = slurm::check_paths(partial, view_ ? &*view_ : nullptr, problems_);
    const std::optional<std::string> given = partial.config.model.hf_path;
    if (given) partial.config.model.hf_path.reset();
    if (given && is_readable) partial.config.model.hf_path = view_ ? view_->on_host(*given)->string() : *given;
    is_model_known_ = !given || is_readable;
    try {
      if (is_model_known_) complete_config(partial);
    } catch (const base::UserError& error) {
      slurm::add_problems(problems_, error);
      is_model_known_ = !given;
    }
    partial.config.model.hf_path = given;
  }

  void complete(const config::ResolvedConfig& resolved) {
    slurm::SlurmRequest& request = result_.slurm;
    job().uses_gpus = resolved.config.dist.device == config::DeviceKind::kCuda;
    request.asks_for_gpus = job().uses_gpus && !options_.has_no_gpu_request;
    if (!job().uses_gpus)
      note(resolved.describe("dist.device") + ": no GPUs are asked for; dist.device=cuda uses them.");
    result_.slurm.has_port_of_job = !request.asks_for_gpus && !environment_.get_nonblank("MASTER_PORT");
    check_build();
    check_saves(resolved);
    job().nsys_ranks = resolved.config.profiling.profile_ranks;
    job().name = options_.job_name.empty() ? resolved.recipe_name : options_.job_name;
    collect([&] {
      job().environment = launch::plan_environment(resolved, job().environment.profile, environment_,
                                                   {.gpus_per_node = job().gpus_per_node});
    });
    result_.notes.insert(result_.notes.end(), job().environment.warnings.begin(), job().environment.warnings.end());
    result_.notes.insert(result_.notes.end(), resolved.warnings.begin(), resolved.warnings.end());
    if (!in_allocation_) slurm::check_signal(result_.slurm, resolved, problems_, result_.notes);
    check_nsys_ranks(resolved);
    name_ = resolved.recipe_name;
    place_run_folder(options_.run_folder.empty() ? train::default_run_folder(name_, base::wall_ns())
                                                 : fs::path(options_.run_folder));
  }

  void check_nsys_ranks(const config::ResolvedConfig& resolved) {
    const std::int64_t num_ranks = job().num_nodes * job().gpus_per_node;
    const auto is_rank = [&](std::int64_t rank) { return rank >= 0 && rank < num_ranks; };
    const auto& ranks = job().nsys_ranks;
    if (!job().uses_nsys || ranks.empty() || std::any_of(ranks.begin(), ranks.end(), is_rank)) return;
    problems_.push_back({.what = "--nsys is given, but " + resolved.describe("profiling.profile_ranks") +
                                 " names none of the " + std::to_string(num_ranks) + " ranks.",
                         .where = "--nsys",
                         .why = "No rank would run under Nsight Systems.",
                         .fix = "Name ranks from 0 to " + std::to_string(num_ranks - 1) +
                                ", for example profiling.profile_ranks=[0]."});
  }

  /// The tasks would find it out, but only after the queue.
  void check_build() {
    std::error_code ignored;
    const bool is_own = !job().container && fs::equivalent(job().program, result_.slurm.host_program, ignored);
    // A build with CUDA has its hooks even where there is no GPU, as on a login machine.
    if (!job().uses_gpus || !is_own || at::detail::getCUDAHooks().hasCUDART()) return;
    const std::string what =
        "dist.device = cuda, but the program of the tasks, " + job().program + ", was built without CUDA.";
    if (options_.is_dry_run) {
      result_.warnings.push_back(what + " Take a build with CUDA, an image (--image) or dist.device=cpu.");
      return;
    }
    problems_.push_back({.what = what,
                         .where = "dist.device",
                         .why = "Every rank would leave at once.",
                         .fix =
                             "Launch with a build that has CUDA, or name an image that has one (--image) or its place "
                             "on the nodes (--program), or train on CPUs: dist.device=cpu."});
  }

  void check_saves(const config::ResolvedConfig& resolved) {
    if (resolved.config.checkpoint.save_interval != 0) return;
    const bool is_chained = result_.slurm.is_chained;
    if (!is_chained && !options_.is_requeued) {
      note(resolved.describe("checkpoint.save_interval") + ": a run that is ended early saves nothing.");
      return;
    }
    const std::string option = options_.is_requeued ? "--requeue" : "--chain";
    problems_.push_back({.what = option + " is given, but " + resolved.describe("checkpoint.save_interval") + ".",
                         .where = option,
                         .why = "The run saves nothing, so that each job would begin at step 0 again.",
                         .fix = "Add checkpoint.save_interval=N, for example 500."});
  }

  void note_early_signal() {
    if (!problems_.empty() || result_.slurm.time.empty() || options_.signal.empty()) return;
    const auto limit = slurm::parse_time_limit(result_.slurm.time);
    constexpr std::int64_t kSlackSeconds = 60;  // SLURM looks at the clock of a job that rarely
    const std::int64_t signal = slurm::parse_signal(options_.signal).seconds;
    if (limit && *limit < signal + kSlackSeconds)
      note(
          "SLURM may send the signal of --signal up to 60 s early: this job may be told to leave as soon as it "
          "starts.");
  }

  /// GPUs by `scontrol`, which says it of every job, else by the variables of a node or of salloc's request.
  slurm::Allocation read_allocation() const {
    slurm::Allocation allocation{.num_nodes = num_allocated_, .gpus = std::nullopt};
    allocation.cpus = slurm::parse_cpus_per_node(environment_.get_nonblank("SLURM_JOB_CPUS_PER_NODE").value_or(""));
    const std::string job_id = environment_.get_nonblank("SLURM_JOB_ID").value_or("");
    if (base::find_program("scontrol")) {
      const base::CommandResult said =
          base::run_command({.words = {"scontrol", "show", "job", "-d", job_id}, .limit_ms = 20'000});
      if (said.exit_code == 0) allocation.gpus = slurm::parse_job_gpus(said.output);
    }
    const auto on_node = environment_.get_nonblank("SLURM_GPUS_ON_NODE");
    if (!allocation.gpus && on_node) {
      if (const auto count = lens::parse_integer(*on_node)) allocation.gpus = *count * num_allocated_;
    }
    return allocation;
  }

  void place_run_folder(const fs::path& folder) {
    job().run_folder = fs::absolute(folder).lexically_normal();
    result_.slurm.task_run_folder = job().run_folder;
    std::error_code unknown;  // what is wrong with the folder is said when it is made
    if (fs::exists(job().run_folder / "run.yaml", unknown))
      note("'" + job().run_folder.string() + "' holds a run; the job continues it.");
    if (!view_) return;
    if (const auto inside = slurm::check_run_folder(job().run_folder, *view_, problems_))
      result_.slurm.task_run_folder = *inside;
  }

  void check_slurm(const std::optional<config::ResolvedConfig>& resolved) {
    std::vector<std::string> commands = {"srun", "sinfo", "squeue", "scontrol"};
    if (!in_allocation_) commands.insert(commands.begin(), "sbatch");
    const slurm::ClusterFacts facts = slurm::read_cluster_facts(commands);
    if (options_.is_dry_run && (!facts.missing_commands.empty() || !facts.silence.empty())) {
      note(facts.silence.empty() ? "SLURM is not in PATH: the partition, its nodes and --mpi are not checked."
                                 : "SLURM does not answer (" + facts.silence + "): its nodes are not checked.");
      return;
    }
    double memory_bytes = 0;
    if (resolved && !job().uses_gpus && problems_.empty()) {
      const plan::Plan plan = plan::make_plan(*resolved, job().num_nodes * job().gpus_per_node);
      // Mapped pages of the data make way.
      memory_bytes = (plan.memory.peak_bytes - plan.memory.part("data")) * static_cast<double>(job().gpus_per_node);
    }
    slurm::check_cluster(result_.slurm, facts, memory_bytes, problems_);
  }

  const LaunchOptions& options_;
  const lens::Environment& environment_;
  CheckedRequest result_;
  bool in_allocation_ = false;
  std::int64_t num_allocated_ = 1;
  std::string first_task_;      ///< of --array
  std::string name_;            ///< of the recipe
  bool is_model_known_ = true;  ///< model.hf_path, if any, could be read
  slurm::Problems problems_;
  std::vector<slurm::Mount> mounts_;
  std::optional<slurm::ContainerView> view_;
  std::vector<std::string> job_overrides_;
};

}  // namespace

bool is_in_allocation(const lens::Environment& environment) {
  if (!environment.get_nonblank("SLURM_JOB_ID")) return false;
  // The batch script and the shell of salloc are numbered from here on.
  constexpr std::int64_t kFirstSpecialStep = 4294967290;
  const auto step = environment.get_nonblank("SLURM_STEP_ID");
  if (!step || !environment.get_nonblank("SLURM_PROCID") || lens::parse_integer(*step).value_or(0) >= kFirstSpecialStep)
    return true;
  throw base::UserError(
      {.what = "This process is a task of the SLURM step " + *environment.get("SLURM_JOB_ID") + "." + *step + ".",
       .where = "SLURM_STEP_ID, SLURM_PROCID",
       .why = "Tasks cannot start further steps.",
       .fix = "Run `pharos launch` in the shell of salloc or on a login node."});
}

CheckedRequest make_launch_request(const LaunchOptions& options, const lens::Environment& environment) {
  return Maker(options, environment).make();
}

}  // namespace pharos::cli
