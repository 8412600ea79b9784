#include "pharos/cli/launch/launch_options.h"

#include "pharos/cli/integer_option.h"
#include "pharos/cli/text_option.h"

namespace pharos::cli {
namespace {

void add_cluster_options(CLI::App& command, LaunchOptions& options) {
  auto* group = command.add_option_group("SLURM");
  group->add_option("--nodes", options.num_nodes, "Nodes (default: 1, in an allocation all of its)")
      ->check(whole_number<std::int64_t>(1, 100'000));
  group->add_option("--gpus-per-node", options.gpus_per_node, "Ranks of a node (default: $GPUS_PER_NODE, else 8)")
      ->check(whole_number<std::int64_t>(1, 4096));
  group->add_option("--partition,-p", options.partition, "Partition of the job")->check(filled_text());
  group->add_option("--account,-A", options.account, "Account of the job")->check(filled_text());
  group->add_option("--qos", options.qos, "Quality of service of the job")->check(filled_text());
  group->add_option("--constraint", options.constraint, "Features that nodes must have")->check(filled_text());
  group->add_option("--time,-t", options.time, "Time limit, as sbatch takes it")->check(filled_text());
  group->add_option("--job-name,-J", options.job_name, "Name of the job (default: the recipe's)")->check(filled_line());
  group
      ->add_option("--array", options.array,
                   "Job array, as sbatch takes it; %a in an override is the number of the task")
      ->check(filled_text());
  group->add_option("--mpi", options.mpi, "Process management of srun: pmix (default), pmi2, none, …")
      ->check(filled_text());
  group->add_flag("--no-gpu-resource-request", options.has_no_gpu_request, "Ask SLURM for no GPUs");
  group->add_option("--env", options.variables, "Variable that the tasks get from here (repeatable)")
      ->check(filled_text())
      ->allow_extra_args(false);
  group->add_option("--srun-arg", options.srun_arguments, "Word passed on to srun (repeatable)")
      ->check(filled_text())
      ->allow_extra_args(false);
  group->add_option("--sbatch-arg", options.sbatch_arguments, "Word passed on to sbatch (repeatable)")
      ->check(filled_text())
      ->allow_extra_args(false);
}

void add_life_options(CLI::App& command, LaunchOptions& options) {
  auto* group = command.add_option_group("Life of the job");
  group->add_flag("--wait", options.waits, "Return when the job has ended, with its code");
  group->add_flag("--requeue,!--no-requeue", options.is_requeued,
                  "Put the job back into the queue after an interruption or a crash");
  group
      ->add_option("--max-requeues", options.max_requeues,
                   "At most this many starts in a row that save no further step (default: 3)")
      ->check(whole_number<std::int64_t>(0, 1'000'000));
  group->add_option("--signal", options.signal,
                    "SIGNAL@SECONDS before the time limit that tasks are to save and leave (default: TERM@120)");
  group->add_option("--chain", options.chain_length, "Submit this many jobs, each continuing the one before")
      ->check(whole_number<std::int64_t>(1, 1000));
}

void add_container_options(CLI::App& command, LaunchOptions& options) {
  auto* group = command.add_option_group("Container");
  CLI::Option* none = group->add_flag("--no-container", options.has_no_container, "Run Pharos of the nodes");
  group
      ->add_option("--image", options.image,
                   "Squashfs file (default: $SQSH, else ./pharos+latest.sqsh if there is one)")
      ->excludes(none);
  group->add_option("--mounts", options.mounts, "SOURCE:TARGET,… (default: $MOUNT, else .:/workspace/pharos,/fsx:/fsx)")
      ->excludes(none);
  group
      ->add_option("--container-name", options.container_name,
                   "Name under which nodes keep the unpacked image (default: one for each version of the image)")
      ->check(filled_line())
      ->excludes(none);
}

}  // namespace

void add_launch_options(CLI::App& command, LaunchOptions& options) {
  command.add_option("recipe", options.recipe, "Recipe by name or path (pharos recipes list)");
  command.add_option("overrides", options.overrides,
                     "key=value …: fields of the configuration or parameters of the recipe");
  command.add_flag("--dry-run", options.is_dry_run, "Check, print the script, submit and write nothing");
  command.add_option("--run-dir", options.run_folder, "Folder of the run (default: runs/RECIPE-TIME)")
      ->check(filled_text());
  command
      .add_option("--program", options.program, "Pharos as a task finds it (default: this one; in a container pharos)")
      ->check(filled_text());
  command.add_option("--profile", options.profile, "Network between the nodes: efa (default), ib, tcp")
      ->check(filled_text());
  command.add_flag("--nsys", options.uses_nsys, "Run profiling.profile_ranks under Nsight Systems");
  command.add_option("--train-arg", options.train_arguments, "Word passed on to pharos train (repeatable)")
      ->check(filled_text())
      ->allow_extra_args(false);
  command.add_option("--expand-nodes", options.node_list, "Print the hosts of a SLURM node list and leave");
  add_cluster_options(command, options);
  add_life_options(command, options);
  add_container_options(command, options);
}

}  // namespace pharos::cli
