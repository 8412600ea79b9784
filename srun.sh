#!/usr/bin/env bash
# Trains a recipe on all nodes of a SLURM allocation: `pharos launch` in a page of shell. It needs no Pharos on this
# machine, only in the image or on the nodes.
#
#   salloc --nodes=2 --exclusive --gpus-per-node=8     where SLURM manages the GPUs
#   salloc --nodes=2 --exclusive                       where it does not
#   ./srun.sh [--nsys] RECIPE [key=value …]
#
# Variables, with what holds when they are not set:
#   SQSH           image of the tasks         ./pharos+latest.sqsh if it is there, else none; SQSH= : none
#   MOUNT          what the container shows   .:/workspace/pharos,/fsx:/fsx (of these, what is there), MOUNT= too
#   GPUS_PER_NODE  ranks of a node            8
#   MASTER_PORT    where the ranks meet       29500
#   RUN_DIR        folder of the run          runs/RECIPE-JOB; a run that is in it is continued
#   PROFILE        network of the nodes       efa (or ib, tcp)
#   MPI            --mpi of srun              pmix
#   PHAROS         the program in the tasks   pharos
# The GPUs of the allocation, if SLURM_GPUS_ON_NODE, SLURM_JOB_GPUS or SLURM_GPUS_PER_NODE tells of any, go to the tasks.
# docs/cluster/launch.md
set -euo pipefail

fail() { # WHAT FIX
  printf 'error: %s\n  fix: %s\n' "$1" "$2" >&2
  exit 2
}

nsys=
if [ "${1:-}" = --nsys ]; then
  nsys=1
  shift
fi
case ${1:-} in
  '' | -*) fail "usage: ./srun.sh [--nsys] RECIPE [key=value …]" "Name a recipe, for example GPUS_PER_NODE=2 ./srun.sh deepseek_v2_lite_tiny." ;;
esac
[ -n "${SLURM_JOB_ID:-}" ] || fail "This shell is not in a SLURM allocation: SLURM_JOB_ID is not set." \
  "Run salloc first, or submit with pharos launch."
command -v srun >/dev/null || fail "There is no srun in PATH." "Load the SLURM module of this cluster."

recipe=$1
shift
gpus_per_node=${GPUS_PER_NODE:-8}
num_nodes=${SLURM_JOB_NUM_NODES:-${SLURM_NNODES:-1}}
[[ $gpus_per_node =~ ^[1-9][0-9]*$ ]] || fail "GPUS_PER_NODE = '$gpus_per_node' is not a whole number." "Correct or unset it."
name=${recipe##*/}
run_folder=${RUN_DIR:-runs/${name%.yaml}-$SLURM_JOB_ID}
profile=${PROFILE:-efa}
pharos=${PHAROS:-pharos}

# What a path of this machine is called in the container; nothing where no mount shows it. The mount with the longest
# source counts, unless another one lies over what it shows.
sources=() targets=()
in_container() { # PATH
  local at over path top seen='' longest=-1 covering
  for at in "${!sources[@]}"; do
    [[ $1/ == "${sources[at]}"/* ]] && [ "${#sources[at]}" -ge "$longest" ] || continue
    path=${targets[at]}${1#"${sources[at]}"}
    top=$at covering=-1
    for over in "${!targets[@]}"; do
      if [[ $path/ == "${targets[over]}"/* ]] && [ "${#targets[over]}" -ge "$covering" ]; then
        top=$over covering=${#targets[over]}
      fi
    done
    [ "${sources[top]}${path#"${targets[top]}"}" = "$1" ] || continue
    seen=${path:-/} longest=${#sources[at]}
  done
  printf '%s' "$seen"
}

# The container, where there is one. Its working folder is this one, so that relative paths mean the same.
container=()
task_run_folder=$run_folder
if [ -z "${SQSH+set}" ] && [ -e pharos+latest.sqsh ]; then SQSH="pharos+latest.sqsh"; fi
if [ -n "${SQSH:-}" ]; then
  [ -f "$SQSH" ] || fail "There is no image '$SQSH'." "Make it with make image, or set SQSH."
  mounts=
  rest=${MOUNT:-.:/workspace/pharos,/fsx:/fsx},
  while [ -n "$rest" ]; do
    entry=${rest%%,*}
    rest=${rest#*,}
    [ -n "$entry" ] || continue
    source=${entry%%:*}
    if [ ! -e "$source" ]; then
      [ -z "${MOUNT:-}" ] || fail "The source '$source' of the mount '$entry' does not exist." "Correct MOUNT."
      continue
    fi
    source=$(realpath "$source")
    case $source in *[,:]*) fail "The mount '$source' has a comma or colon, which pyxis cannot read." "Name other sources in MOUNT." ;; esac
    case $entry in *:*) target=${entry#*:} ;; *) target=$source ;; esac
    case $target in /*) ;; *) fail "The target of the mount '$entry' is not an absolute path." "Correct MOUNT." ;; esac
    mounts+=${mounts:+,}$source:$target
    target=$(realpath -ms "${target%%:*}")
    sources+=("${source%/}") targets+=("${target%/}")
  done
  work_folder=$(in_container "$(realpath .)")
  if [ -n "$work_folder" ]; then
    container+=("--container-workdir=$work_folder")
  else
    echo "note: no mount shows this folder: relative paths in key=value mean the image's own folder." >&2
  fi
  real_run_folder=$(realpath -m "$run_folder")
  task_run_folder=$(in_container "$real_run_folder")
  [ -n "$task_run_folder" ] || fail "The run folder '$real_run_folder' is not visible inside the container." \
    "Add a folder above it to MOUNT (now $mounts), or choose another RUN_DIR."
  image=$(realpath "$SQSH")
  name=$(basename "$image" .sqsh)
  name=${name//[^a-zA-Z0-9-]/_}-$(stat -c %Y "$image") # an image built anew is unpacked anew
  container+=("--container-image=$image" "--container-name=$name")
  if [ -n "$mounts" ]; then container+=("--container-mounts=$mounts"); fi
fi

gpus=()
if [ "${SLURM_GPUS_ON_NODE:-0}" != 0 ] || [ -n "${SLURM_JOB_GPUS:-}${SLURM_GPUS_PER_NODE:-}" ]; then
  gpus=("--gpus-per-node=$gpus_per_node")
fi

# The first host of "rack[3-4]n01,x", where there is no scontrol.
first_host() { # LIST
  local list=$1 host='' part
  while :; do
    case $list in
      '' | ,*) break ;;
      \[*) # the first number of a bracket
        part=${list#\[}
        part=${part%%\]*}
        list=${list#*\]}
        host+=${part%%[,-]*}
        ;;
      *)
        part=${list%%[\[,]*}
        list=${list#"$part"}
        host+=$part
        ;;
    esac
  done
  printf '%s\n' "$host"
}

# Where the ranks meet: the first node.
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" 2>/dev/null) || hosts=$(first_host "$SLURM_JOB_NODELIST")
host=${hosts%%$'\n'*}
MASTER_ADDR=$(getent hosts "$host" | awk '{ print $1; exit }') || true
if [ -z "$MASTER_ADDR" ]; then # SLURM may know an address that DNS does not
  MASTER_ADDR=$(scontrol show node "$host" --oneliner 2>/dev/null | sed -n 's/.* NodeAddr=\([^ ]*\) .*/\1/p') || true
  getent hosts "${MASTER_ADDR:-$host}" >/dev/null ||
    fail "MASTER_ADDR: the name '$host' of the first node has no address here." "Add it to DNS or /etc/hosts."
fi
MASTER_PORT=${MASTER_PORT:-29500}
# shellcheck disable=SC2016 # the inner shell expands it
if timeout 5 bash -c 'exec 3<>"/dev/tcp/$1/$2"' connect "$MASTER_ADDR" "$MASTER_PORT" 2>/dev/null; then
  fail "Port $MASTER_PORT of $MASTER_ADDR is taken: the ranks cannot meet there." "Choose another one: MASTER_PORT=… ./srun.sh …"
fi
export MASTER_ADDR MASTER_PORT

overrides=(train.exit_signal_handler=true)
if [ -n "$nsys" ]; then overrides+=(profiling.use_nsys_profiler=true); fi
resume=()
mkdir -p "$run_folder${nsys:+/nsys}"
if [ -e "$run_folder/run.yaml" ]; then resume=(--resume); fi # one decision for all ranks

# Each rank: SLURM's numbers under the names of torchrun, the environment, then the trainer in its place: a profiler sees
# one process per rank.
# shellcheck disable=SC2016 # the task expands it
task='
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
pharos=$1 profile=$2 nsys=$3 run_folder=$4
shift 4
words=("$@")
# Recipe and overrides: not the options of train and their values.
for i in "${!words[@]}"; do case $i:${words[i]} in 0:* | *:[!-]*=* | *:"~"*) ;; *) unset "words[i]" ;; esac; done
lines=$("$pharos" env show "${words[@]}" --profile "$profile" --nodes "$SLURM_NNODES" --gpus-per-node "$LOCAL_WORLD_SIZE" --export) || exit
eval "$lines"
set -- "$pharos" train "$@" --run-dir "$run_folder"
[ -n "$nsys" ] || exec "$@"
fail() {
  echo "error: rank $RANK: $1" >&2
  exit 2
}
# What the window of the trainer goes by, wherever it is set.
shown=$("$pharos" recipes show "${words[@]}") || exit
echo "$shown" | grep "^    use_nsys_profiler: true " >/dev/null ||
  fail "--nsys is given, but profiling.use_nsys_profiler is false: leave out one of the two."
ranks=$(echo "$shown" | sed -n "s/^    profile_ranks: \[\([-0-9, ]*\)\] .*/\1,/p")
[ -n "$ranks" ] || fail "profiling.profile_ranks could not be read from: $pharos recipes show; leave out --nsys."
runs_nsys= is_any=
if [ "$ranks" = , ]; then runs_nsys=1 is_any=1; fi
for rank in ${ranks//,/ }; do
  if [ "$rank" -ge 0 ] && [ "$rank" -lt "$WORLD_SIZE" ]; then is_any=1; fi
  if [ "$rank" = "$RANK" ]; then runs_nsys=1; fi
done
[ -n "$is_any" ] || fail "--nsys is given, but profiling.profile_ranks names none of the $WORLD_SIZE ranks: ${ranks%,}."
[ -n "$runs_nsys" ] || exec "$@"
command -v nsys >/dev/null || fail "There is no nsys in PATH: install it where the tasks run, or leave out --nsys."
metrics=
[ "$profile" != efa ] || metrics="--enable efa_metrics"
exec nsys profile -t cuda,nvtx -s none --cpuctxsw=none --capture-range=cudaProfilerApi --capture-range-end=stop \
  $metrics -o "$run_folder/nsys/profile-$(hostname)-rank$RANK.nsys-rep" --force-overwrite=true "$@"
'
export LOCAL_WORLD_SIZE=$gpus_per_node
exec srun --nodes="$num_nodes" --ntasks="$((num_nodes * gpus_per_node))" --ntasks-per-node="$gpus_per_node" \
  --distribution=block --mpi="${MPI:-pmix}" --kill-on-bad-exit=1 --cpu-bind=none --export=ALL "${gpus[@]}" "${container[@]}" \
  bash -c "$task" pharos-task "$pharos" "$profile" "$nsys" "$task_run_folder" "$recipe" "${overrides[@]}" "$@" "${resume[@]}"
