# Functions shared by the scripts of this folder; sourced, not run. The caller has changed into the repository root.

# stop MESSAGE...: a fault the user can mend; exit code 2, one line per argument.
stop() {
  printf '%s\n' "$@" >&2
  exit 2
}

# given_torch: prints the folder with TorchConfig.cmake that Torch_DIR or CMAKE_PREFIX_PATH names; nothing if neither does.
given_torch() {
  local prefix folder
  if [ -n "${Torch_DIR:-}" ]; then
    [ -f "$Torch_DIR/TorchConfig.cmake" ] ||
      stop "Torch_DIR = $Torch_DIR holds no TorchConfig.cmake." \
        "  Give the folder that does, or unset it: then a virtual environment with libtorch is made."
    printf '%s\n' "$Torch_DIR"
    return
  fi
  while IFS= read -r prefix; do
    for folder in "$prefix" "$prefix/Torch" "$prefix/share/cmake/Torch" "$prefix/lib/cmake/Torch"; do
      if [ -n "$prefix" ] && [ -f "$folder/TorchConfig.cmake" ]; then
        printf '%s\n' "$folder"
        return
      fi
    done
  done < <(printf '%s\n' "${CMAKE_PREFIX_PATH:-}" | tr ':;' '\n\n')
}

# venv_torch: the same folder in the virtual environment .venv; nothing if it is not there.
venv_torch() {
  compgen -G "$PWD/.venv/lib/python3*/site-packages/torch/share/cmake/Torch" | head -n 1 || true
}

# jobs_at_once: how many compilers to run at once: JOBS, else one a core but no more than memory allows (1.5 GiB each).
jobs_at_once() {
  local cores memory_kib by_memory
  cores=$(nproc)
  memory_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  by_memory=$((memory_kib / 1572864))
  [ "$by_memory" -ge 1 ] || by_memory=1
  printf '%s\n' "${JOBS:-$((cores < by_memory ? cores : by_memory))}"
}
