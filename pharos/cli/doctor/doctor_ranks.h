// `pharos doctor --nproc N`: the ranks as processes of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pharos::cli {

struct DoctorArguments {
  std::vector<std::string> only;
  bool lists = false;
  std::optional<std::int64_t> num_gpus;
  std::string shared_folder;
  std::string run_folder = ".";
  std::string profile;  ///< empty: the environment as it is
  std::string device = "auto";
  std::string system_root = "/";
  std::int64_t timeout_s = 120;
  std::int64_t check_timeout_s = 15;
  std::int64_t arrival_timeout_s = 30;
  std::int64_t num_ranks = 0;  ///< 0: this process is a rank, or the only one
  std::string json_path;
  std::vector<std::string> logs;
  bool expects_gin = false;
  bool is_image = false;
  std::string versions_path;
};

/// Starts this program `num_ranks` times with the same options and waits. Returns the exit code; 128 + signal when one
/// asked this process to end.
int examine_on_ranks(const DoctorArguments& arguments);

}  // namespace pharos::cli
