#include "pharos/launch/slurm/job_script.h"

#include <algorithm>
#include <string_view>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/launch/image/image_work.h"
#include "pharos/launch/slurm/shell_text.h"

namespace pharos::launch::slurm {
namespace {

constexpr std::string_view kFail = R"sh(
fail() { # WHAT FIX
  printf 'error: %s\n  where: job %s on %s\n  fix: %s\n' "$1" "$job" "$(hostname)" "$2" >&2
  finish 2
}
)sh";

constexpr std::string_view kPort = R"sh(
# A leading zero would make the number an octal one.
case $MASTER_PORT in
  0* | *[!0-9]* | ??????*) fail "MASTER_PORT = '$MASTER_PORT' is no port." "Set it to a number up to 65535, or unset it." ;;
esac
)sh";

constexpr std::string_view kMaster = R"sh(
# Where the ranks meet: the first node.
node_list=${SLURM_JOB_NODELIST:-}
[ -n "$node_list" ] || fail "SLURM_JOB_NODELIST is not set: the nodes are not known." "Start it in a job or by salloc."
hosts=$(scontrol show hostnames "$node_list" 2>/dev/null)
[ -n "$hosts" ] || hosts=$("$host_program" launch --expand-nodes "$node_list")
host=${hosts%%$'\n'*}
[ -n "$host" ] || fail "The node list '$node_list' could not be read." "Make scontrol available on the nodes."
MASTER_ADDR=$(getent hosts "$host" | awk '{ print $1; exit }')
if [ -z "$MASTER_ADDR" ]; then # SLURM may know an address that DNS does not
  address=$(scontrol show node "$host" --oneliner 2>/dev/null | sed -n 's/.* NodeAddr=\([^ ]*\) .*/\1/p')
  MASTER_ADDR=$(getent hosts "${address:-$host}" | awk '{ print $1; exit }')
fi
[ -n "$MASTER_ADDR" ] || fail "MASTER_ADDR: the name '$host' of the first node has no address here." \
  "Add it to DNS or /etc/hosts of the nodes, or give the node a NodeAddr in slurm.conf."
case $MASTER_ADDR in 127.*)
  [ "$num_nodes" = 1 ] || echo "warning: '$host' is $MASTER_ADDR here, which other nodes cannot reach; see /etc/hosts." >&2 ;;
esac
if timeout 5 bash -c 'exec 3<>"/dev/tcp/$1/$2"' connect "$MASTER_ADDR" "$MASTER_PORT" 2>/dev/null; then
  fail "Port $MASTER_PORT of $MASTER_ADDR is taken: the ranks cannot meet there." \
    "Choose another one: MASTER_PORT=$((MASTER_PORT + 1)) pharos launch …, or end the job that holds it."
fi
export MASTER_ADDR MASTER_PORT
)sh";

constexpr std::string_view kTimeLimit = R"sh(
# When SLURM will end the job, in seconds since 1970; empty without a limit. `pharos train` reads it.
PHAROS_TIME_LIMIT_END=
limit=$(squeue -h -j "$job" -o '%l %e' 2>/dev/null)
case $limit in
  '' | UNLIMITED* | *N/A*) ;;
  *) PHAROS_TIME_LIMIT_END=$(date -d "${limit#* }" +%s 2>/dev/null) ;;
esac
export PHAROS_TIME_LIMIT_END
)sh";

constexpr std::string_view kSignals = R"sh(
# SLURM tells the tasks itself that the time is running out (--signal) or that the job is cancelled. Only a SIGTERM to
# this shell alone is passed on, once: a second one would end a rank before it has saved. It goes by scancel, because
# srun answers SIGTERM by killing the tasks.
is_running() { [ "$(squeue -h -j "$job" -o %T 2>/dev/null)" = RUNNING ]; }
asked_to_end=
on_term() {
  [ -z "$asked_to_end" ] || return
  asked_to_end=1
  if is_running; then scancel --signal=TERM "$job"; fi
}
trap on_term TERM
)sh";

constexpr std::string_view kWait = R"sh(
# A job that comes back has the numbers of its steps again, and SLURM's PMIx plug-in refuses a step whose socket of before
# still lies on a node. srun leaves with 0 then. The next step has the next number.
steps=0
while :; do
  log_bytes=$(stat -L -c %s "$log" 2>/dev/null || echo 0)
  # The code goes through a file of this node, which the run cannot fill: an interrupted `wait` of bash can lose it.
  code_file=$(mktemp 2>/dev/null)
  (
    trap : TERM
    "${srun[@]}" bash -c "$task" pharos-task "${train[@]}"
    code=$?
    [ -z "$code_file" ] || echo "$code" >"$code_file"
    exit "$code"
  ) &
  step=$!
  while wait "$step"; code=$?; kill -0 "$step" 2>/dev/null; do :; done
  if [ -s "$code_file" ]; then read -r code <"$code_file"; fi
  rm -f "$code_file"
  # The ranks write to the same file: any bytes, and lines without an end.
  said=$([ -f "$log" ] && tail -c "+$((log_bytes + 1))" "$log" | LC_ALL=C grep -a -o 'srun: error: .*')
  case $said in *" launch failed: "*) ;; *) break ;; esac
  steps=$((steps + 1))
  [ "$steps" -le "$((${SLURM_RESTART_COUNT:-0} + 2))" ] && [ -z "$asked_to_end" ] && is_running || break
  echo "pharos launch: SLURM could not start the ranks; once more, as another step." >&2
done
# srun gives the highest code: 143 of a rank it has ended itself hides the 2 of the rank that was at fault, and the 3 of
# ranks that lost a peer comes after the signal that killed the peer.
first=$(printf '%s\n' "$said" | LC_ALL=C sed -n -e '/: Terminated$/d' \
  -e 's/^srun: error: [^:]*: tasks\{0,1\} [0-9,-]*: Exited with exit code \([0-9]*\)$/\1/p' -e t \
  -e 's/^srun: error: [^:]*: tasks\{0,1\} [0-9,-]*: .*/128/p' | head -n 1)
code=${first:-$code}
# srun also leaves with 0 when it has not heard of the ranks again: their node failed, or SLURM has ended the job. Then no
# job answers that runs; a squeue that fails is no such answer, but one that SLURM's signal has ended with the job is.
case $code:$said in
  0:*" launch failed: "*) code=1 ;;
  [03]:*"Node failure on "*) code=4 ;; # 3: of ranks that lost those of the node
  0:*)
    state=$(squeue -h -j "$job" -o %T 2>/dev/null)
    case $?:$state in 0:RUNNING | [1-9]:* | [1-9][0-9]:*) ;; *) code=4 ;; esac ;;
esac
)sh";

constexpr std::string_view kEnd = R"sh(
# 0 done, 2 user error, 3 training failure, 17 failed again on other hardware, 126 and 127 no program to start: another
# try gives the same.
case $code in 0 | 2 | 3 | 17 | 126 | 127) finish "$code" ;; esac
)sh";

constexpr std::string_view kRequeue = R"sh(
# 4 interrupted and saved, 16 restart, else a crash or a lost node. Who cancels a job does not want it back.
is_running || finish "$code"
# What counts is progress: starts in a row that saved no further step.
useful=$(grep -c '"useful_steps":[1-9]' "$run_folder/attempts.jsonl" 2>/dev/null)
useful_before=0
# Four words, the last two of them short numbers: anything else in the file counts as nothing, and is never evaluated.
is_count() { case ${1:-x} in *[!0-9]* | ??????????*) return 1 ;; esac; }
if [ -n "${SLURM_RESTART_COUNT:-}" ] && read -r _ from third fourth rest 2>/dev/null <"$run_folder/launch.end" &&
  [ "$from" = "$job" ] && [ -z "$rest" ] && is_count "$third" && is_count "$fourth"; then
  stalls=$((10#$third)) useful_before=$((10#$fourth))
fi
if [ "${useful:-0}" -gt "$useful_before" ]; then stalls=0; else stalls=$((stalls + 1)); fi
if [ "$stalls" -gt "$max_requeues" ]; then
  echo "pharos launch: code $code, no progress in $stalls starts; not requeued (--max-requeues)." >&2
  finish "$code"
fi
if ! note_end "$code"; then
  echo "pharos launch: code $code; not requeued, because $run_folder/launch.end cannot be written." >&2
  exit "$code"
fi
echo "pharos launch: code $code; job $job goes back into the queue." >&2
scontrol requeue "$job" || echo "pharos launch: the job could not be requeued." >&2
exit "$code"
)sh";

std::string folder_text(const std::filesystem::path& folder, const SlurmRequest& request) {
  return quote(folder.string()) + (request.array.empty() ? "" : "/$SLURM_ARRAY_TASK_ID");
}

std::string settings(const SlurmRequest& request, bool is_batch) {
  const JobRequest& job = request.job;
  std::string text = "set -u\n\n";
  text +=
      "# The user's own ways to show jobs and times change what is read here.\n"
      "unset SLURM_TIME_FORMAT ${!SQUEUE_*} ${!SINFO_*} ${!SCONTROL_*} ${!SCANCEL_*}\n";
  const bool is_array = !request.array.empty();
  text += is_array ? "job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID\n" : "job=$SLURM_JOB_ID\n";
  text += "run_folder=" + folder_text(job.run_folder, request) + "\n";
  if (is_batch) {
    text += "log=/proc/$$/fd/2\n";
    if (request.is_requeued) text += "max_requeues=" + std::to_string(request.max_requeues) + "\n";
  }
  text += "host_program=" + quote(request.host_program.string()) + "\n";
  text += "num_nodes=" + std::to_string(job.num_nodes) + "\n";
  const std::string port = std::to_string(job.master_port);
  // Jobs, and elements of an array, that get the same first node must not meet each other there.
  text += "MASTER_PORT=${MASTER_PORT:-" + (request.has_port_of_job ? "$((" + port + " + SLURM_JOB_ID % 1000))" : port) +
          "}\n";
  return text;
}

std::string master_lines(const SlurmRequest& request) {
  std::string text(kPort);
  if (!request.array.empty() && !request.has_port_of_job)
    text += "MASTER_PORT=$(((MASTER_PORT - 1024 + SLURM_ARRAY_TASK_ID % 1000) % 64512 + 1024))\n";
  return text.append(kMaster);
}

std::string finish_functions(const SlurmRequest& request, bool is_batch) {
  if (!is_batch) return "finish() { exit \"$1\"; }\n";
  std::string text =
      "\n# What the job came to, for the jobs of a chain after it.\n"
      "stalls=0 useful=0\n"
      "note_end() { # CODE\n"
      "  printf '%s %s %s %s\\n' \"$1\" \"$job\" \"$stalls\" \"${useful:-0}\" >\"$run_folder/launch.end.new\" &&\n"
      "    mv -f \"$run_folder/launch.end.new\" \"$run_folder/launch.end\" && return\n"
      "  rm -f \"$run_folder/launch.end.new\"\n"
      "  return 1\n"
      "}\n"
      "is_locked() {\n"
      "  [ -e \"$run_folder/lock\" ] || return 1\n"
      "  flock --nonblock \"$run_folder/lock\" true 2>/dev/null\n"
      "  [ $? = 1 ]\n"
      "}\n"
      "finish() { # CODE\n"
      "  # Who is refused because another job runs in the folder has not ended that run.\n"
      "  if [ \"$1\" != 2 ] || ! is_locked; then note_end \"$1\"; fi\n"
      "  exit \"$1\"\n"
      "}\n";
  if (!request.is_chained) return text;
  return text +
         "# The arguments: the jobs of the chain before this one. What others left in the folder does not end it.\n"
         "if read -r code from _ <\"$run_folder/launch.end\" && [ -n \"$from\" ]; then\n"
         "  case \" $* \" in *\" ${from%%_*} \"*)\n"
         "    case $code in 0 | 2 | 3 | 17 | 126 | 127)\n"
         "      echo \"pharos launch: job $from ended the run with code $code; nothing is left to do.\"\n"
         "      exit \"$code\" ;;\n"
         "    esac ;;\n"
         "  esac\n"
         "fi 2>/dev/null\n";
}

std::string nsys_lines(const SlurmRequest& request) {
  const JobRequest& job = request.job;
  if (!job.uses_nsys) return "";
  const bool has_efa = job.environment.profile == NetworkProfile::kEfa;
  const std::string check =
      "command -v nsys >/dev/null || {\n"
      "  printf 'error: There is no nsys in PATH: Nsight Systems is not here.\\n  where: rank %s on %s\\n  fix: %s\\n' "
      "\"$RANK\" \"$(hostname)\" 'Install it where the tasks run (in the image), or leave out --nsys.' >&2\n"
      "  exit 2\n}\n";
  const std::string prefix = check +
                             "set -- nsys profile -t cuda,nvtx -s none --cpuctxsw=none --capture-range=cudaProfilerApi "
                             "--capture-range-end=stop " +
                             std::string(has_efa ? "--enable efa_metrics " : "") + "-o " +
                             folder_text(request.task_run_folder, request) +
                             "/nsys/profile-$(hostname)-rank$RANK.nsys-rep --force-overwrite=true \"$@\"";
  if (job.nsys_ranks.empty()) return prefix + "\n";
  std::string ranks;
  for (const std::int64_t rank : job.nsys_ranks) ranks += (ranks.empty() ? "" : " | ") + std::to_string(rank);
  return "case $RANK in " + ranks + ")\n  " + prefix + " ;;\nesac\n";
}

/// What every task runs before it becomes the trainer. It is the task itself, so that a profiler or a signal meets one
/// process per rank.
std::string task_text(const SlurmRequest& request) {
  const std::string lines =
      "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=" +
      std::to_string(request.job.gpus_per_node) + "\n" + export_lines(request.job.environment) + nsys_lines(request) +
      "exec \"$@\"\n";
  std::string end = "END_OF_TASK";
  while (("\n" + lines).find("\n" + end + "\n") != std::string::npos) end += "_";
  return "\n# Each rank: SLURM's numbers under the names of torchrun, the environment, then the trainer in its place.\n"
         "task=$(cat <<'" +
         end + "'\n" + lines + end + "\n)\n";
}

std::string srun_words(const SlurmRequest& request) {
  const JobRequest& job = request.job;
  std::vector<std::string> words = {"srun",
                                    "--nodes=" + std::to_string(job.num_nodes),
                                    "--ntasks=" + std::to_string(job.num_nodes * job.gpus_per_node),
                                    "--ntasks-per-node=" + std::to_string(job.gpus_per_node),
                                    "--mpi=" + request.mpi,
                                    "--kill-on-bad-exit=1",
                                    "--cpu-bind=none",
                                    "--distribution=block",
                                    "--export=ALL"};
  if (request.asks_for_gpus) words.push_back("--gpus-per-node=" + std::to_string(job.gpus_per_node));
  if (job.container) {
    words.push_back("--container-image=" + job.container->image);
    if (!job.container->mounts.empty()) words.push_back("--container-mounts=" + base::join(job.container->mounts, ","));
    if (!job.container->name.empty()) words.push_back("--container-name=" + job.container->name);
    if (!job.container->work_folder.empty()) words.push_back("--container-workdir=" + job.container->work_folder);
    if (!request.variables.empty()) words.push_back("--container-env=" + base::join(request.variables, ","));
  }
  words.insert(words.end(), request.srun_arguments.begin(), request.srun_arguments.end());
  std::string text = "srun=(";
  for (const std::string& word : words) text += "\n  " + quote(word);
  return text + "\n)\n";
}

std::string train_words(const SlurmRequest& request) {
  const JobRequest& job = request.job;
  std::string text = "overrides=(";
  for (const std::string& word : job.overrides) text += "\n  " + quote(word);
  text += "\n)\n";
  if (!request.array.empty()) text += "overrides=(\"${overrides[@]//%a/$SLURM_ARRAY_TASK_ID}\")\n";
  text += "train=(" + quote_all({job.program, "train", path_word(job.recipe)}) + " \"${overrides[@]}\" ";
  if (!job.train_options.empty()) text += quote_all(job.train_options) + " ";
  text += "--run-dir " + folder_text(request.task_run_folder, request) + ")\n";
  return text +
         "# One decision for all ranks: a rank that looks later would see the run that rank 0 has just begun.\n"
         "if [ -e \"$run_folder/run.yaml\" ]; then train+=(--resume); fi\n";
}

std::string folders(const SlurmRequest& request) {
  return std::string("mkdir -p \"$run_folder") + (request.job.uses_nsys ? "/nsys" : "") +
         "\" || fail \"The run folder '$run_folder' cannot be made.\" \"Choose another one with --run-dir.\"\n";
}

}  // namespace

std::vector<std::string> batch_options(const SlurmRequest& request) {
  const JobRequest& job = request.job;
  if (job.run_folder.string().find('\\') != std::string::npos) {
    throw base::UserError({.what = "The run folder '" + job.run_folder.string() + "' has a backslash in its name.",
                           .where = "--run-dir",
                           .why = "sbatch then cannot name the job's log, and SLURM fails the job without a word.",
                           .fix = "Choose another name."});
  }
  std::string folder;
  for (const char letter : job.run_folder.string()) folder.append(letter == '%' ? 2 : 1, letter);
  std::vector<std::string> options;
  const auto add = [&options](const std::string& option, const std::string& value) {
    if (!value.empty()) options.push_back(option + value);
  };
  add("--job-name=", job.name);
  add("--nodes=", std::to_string(job.num_nodes));
  add("--ntasks-per-node=", std::to_string(job.gpus_per_node));
  if (request.asks_for_gpus) {
    add("--gpus-per-node=", std::to_string(job.gpus_per_node));
    options.emplace_back("--exclusive");
  }
  add("--time=", request.time);
  add("--account=", request.account);
  add("--partition=", request.partition);
  add("--qos=", request.qos);
  add("--constraint=", request.constraint);
  add("--array=", request.array);
  add("--signal=", request.signal);
  add("--output=", folder + (request.array.empty() ? "/slurm-%j.log" : "/slurm-%A_%a.log"));
  options.emplace_back("--open-mode=append");
  options.emplace_back(request.is_requeued ? "--requeue" : "--no-requeue");
  options.push_back("--export=ALL" + (request.variables.empty() ? "" : "," + base::join(request.variables, ",")));
  options.insert(options.end(), request.sbatch_arguments.begin(), request.sbatch_arguments.end());
  return options;
}

std::string batch_script(const SlurmRequest& request) {
  std::string text = "#!/bin/bash\n";
  for (const std::string& option : batch_options(request)) text += sbatch_line(option);
  text += settings(request, true) + finish_functions(request, true);
  text +=
      std::string(kFail) + folders(request) + std::string(kSignals) + std::string(kTimeLimit) + master_lines(request);
  text += task_text(request) + srun_words(request) + train_words(request) + std::string(kWait) + std::string(kEnd);
  return text + (request.is_requeued ? std::string(kRequeue) : "finish \"$code\"\n");
}

std::string allocation_script(const SlurmRequest& request) {
  std::string text = "#!/bin/bash\n" + settings(request, false) + finish_functions(request, false);
  text += std::string(kFail) + folders(request) + std::string(kTimeLimit) + master_lines(request);
  text += task_text(request) + srun_words(request) + train_words(request);
  return text + "exec \"${srun[@]}\" bash -c \"$task\" pharos-task \"${train[@]}\"\n";
}

}  // namespace pharos::launch::slurm
