#include "pharos/launch/kubernetes/pod_script.h"

#include <sstream>
#include <vector>

#include "pharos/base/subprocess.h"
#include "pharos/launch/environment/profile_variables.h"
#include "pharos/launch/image/image_work.h"

namespace pharos::launch {
namespace {

std::string command_line(const JobRequest& request) {
  std::vector<std::string> words = {request.program, "train", path_word(request.recipe)};
  words.insert(words.end(), request.overrides.begin(), request.overrides.end());
  words.insert(words.end(), request.train_options.begin(), request.train_options.end());
  words.insert(words.end(), {"--run-dir", request.run_folder.string()});
  return base::shell_line(words) + " $resume";
}

/// What the user set goes along, but for the search path of this machine's libraries: those of the image count.
std::string exports(const EnvironmentPlan& plan) {
  std::string lines;
  const auto add = [&](const PlannedVariable& variable) {
    if (is_shell_name(variable.name)) lines += "    " + export_line(variable);
  };
  for (const PlannedVariable& variable : plan.variables) {
    if (variable.name != "LD_LIBRARY_PATH" || variable.source != VariableSource::kUser) {
      add(variable);
      continue;
    }
    for (const PlannedVariable& own : profile_variables(plan.profile, true)) {
      if (own.name == variable.name) add(own);
    }
  }
  return lines;
}

constexpr const char* kWait = R"(
# A process that has ended stays in /proc as a zombie until `wait` takes its code.
has_ended() {
  ! grep -q '^State:[[:space:]]*[^XZ[:space:]]' "/proc/$1/status" 2>/dev/null
}
pass_on() {
  for pid in $pids; do kill -s "$1" "$pid" 2>/dev/null; done
}
trap 'pass_on TERM' TERM
[ -z "$asked" ] || pass_on TERM

result=0
waited=0
patience=5
while [ -n "$pids" ]; do
  running=
  for pid in $pids; do
    if ! has_ended "$pid"; then
      running="$running $pid"
      continue
    fi
    wait "$pid"
    code=$?
    if [ "$code" -ne 0 ] && { [ "$result" -eq 0 ] || [ "$code" -eq 2 ]; }; then
      result=$code
      [ "$code" -ne 4 ] || patience=30
      echo "node $node: a rank (process $pid) left with code $code" >&2
    fi
  done
  pids=$running
  if [ "$result" -ne 0 ] && [ -n "$pids" ]; then
    waited=$((waited + 1))
    [ "$waited" -ne "$patience" ] || pass_on TERM
    [ "$waited" -ne $((patience + 15)) ] || pass_on KILL
  fi
  if [ -n "$pids" ]; then
    sleep 1 &
    wait "$!"
  fi
done
)";

constexpr const char* kExitPyTorchJob = R"(
# The operator tries again only what leaves with more than 127: training failure (3), interrupted (4), restart (16).
case $result in
  3 | 4 | 16)
    echo "node $node: code $result is given to the operator as 138, which it tries again" >&2
    exit 138
    ;;
esac
exit "$result"
)";

}  // namespace

std::string pod_script(const JobRequest& request, KubernetesKind kind) {
  const bool is_operator = kind == KubernetesKind::kPyTorchJob;
  const std::string run_yaml = base::shell_line({(request.run_folder / "run.yaml").string()});
  std::ostringstream script;
  script << "set -u\n"
         << "num_ranks=" << request.gpus_per_node << "\n"
         << "node=" << (is_operator ? "$RANK" : "$JOB_COMPLETION_INDEX") << "\n"
         << "export WORLD_SIZE=" << request.num_nodes * request.gpus_per_node << "\n"
         << "export LOCAL_WORLD_SIZE=$num_ranks\n"
         << "export MASTER_PORT=" << request.master_port << "\n";
  if (!is_operator) {
    const std::string name = kubernetes_name(request.name);
    script << "export MASTER_ADDR=" << name << "-node-0-0." << name << "\n";
  }
  script << "resume=\n"
         << "[ ! -e " << run_yaml << " ] || resume=--resume\n"
         << "asked=\n"
         << "trap 'asked=yes' TERM\n"
         << "\n"
         << "pids=\n"
         << "index=0\n"
         << "while [ \"$index\" -lt \"$num_ranks\" ]; do\n"
         << "  (\n"
         << "    export LOCAL_RANK=$index\n"
         << "    export RANK=$((node * num_ranks + index))\n"
         << exports(request.environment) << "    exec " << command_line(request) << "\n"
         << "  ) &\n"
         << "  pids=\"$pids $!\"\n"
         << "  index=$((index + 1))\n"
         << "done\n"
         << kWait << (is_operator ? kExitPyTorchJob : "exit \"$result\"\n");
  return script.str();
}

}  // namespace pharos::launch
