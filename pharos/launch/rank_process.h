// Starting one process of a job: its variables, its descriptors, its place below the launcher.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace pharos::launch {

/// A socket that listens on a port of 127.0.0.1, for the store of rank 0 to take over.
class ListenSocket {
 public:
  /// `port` 0: any free one. UserError naming MASTER_PORT when the port is taken.
  explicit ListenSocket(std::uint16_t port);
  ~ListenSocket();
  ListenSocket(const ListenSocket&) = delete;
  ListenSocket& operator=(const ListenSocket&) = delete;
  int descriptor() const { return descriptor_; }
  std::uint16_t port() const { return port_; }

 private:
  int descriptor_ = -1;
  std::uint16_t port_ = 0;
};

struct RankPlace {
  std::int64_t rank = 0;
  std::int64_t num_ranks = 1;  ///< all on this machine
  std::uint16_t port = 0;
  int listen_descriptor = -1;  ///< of rank 0; other ranks are not told
};

/// The launcher's environment (`inherited`, "NAME=value") for one rank: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
/// MASTER_ADDR, MASTER_PORT, for rank 0 PHAROS_LISTEN_SOCKET; OMP_NUM_THREADS = cores of this process / ranks, at least
/// 1, unless it is set.
std::vector<std::string> rank_variables(const std::vector<std::string>& inherited, const RankPlace& place);

/// Variables of this process, "NAME=value".
std::vector<std::string> own_variables();

struct ProcessOptions {
  std::filesystem::path program;       ///< an absolute or relative path, not looked up in PATH
  std::vector<std::string> arguments;  ///< the program's name first
  std::vector<std::string> variables;
  int output_descriptor = -1;   ///< standard output and error; negative: the launcher's
  int inherit_descriptor = -1;  ///< stays open in the process; negative: none
  sigset_t signal_mask = {};    ///< blocked in the process
};

/// Starts the program in a process group of its own, with nothing on standard input. It dies with this thread. Throws
/// base::UserError when no process can be made; a program that cannot be executed leaves with 127 and says so on its
/// standard error.
pid_t start_process(const ProcessOptions& options);

/// The file of this program, or /proc/self/exe where that file has been replaced since the start.
std::filesystem::path own_program();

}  // namespace pharos::launch
