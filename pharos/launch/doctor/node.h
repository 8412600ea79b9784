// What the checks of one node look at.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pharos/launch/doctor/finding.h"
#include "pharos/lens/variables/environment.h"

namespace pharos::launch {

/// Repeated measurements of one device.
struct Measurement {
  std::string device;          ///< "cpu", "cuda:0 NVIDIA H200"
  std::vector<double> values;  ///< one per repeat
};

/// Measurements that need torch, handed in by the command. They run in a child process.
struct Benchmarks {
  std::function<std::vector<Measurement>()> gemm;       ///< GFLOP/s of a matrix product
  std::function<std::vector<Measurement>()> bandwidth;  ///< GB/s of a copy within the device's memory
};

struct Node {
  std::filesystem::path root = "/";  ///< /proc, /sys and /dev are read below it
  std::string host;
  std::optional<std::int64_t> num_gpus;  ///< expected; nullopt: as many as there are
  bool has_other_ranks = false;          ///< of this job on this node, which use its devices at the same time
  std::string shared_folder;             ///< of all nodes; empty: not tested
  std::string run_folder = ".";
  std::string temporary_folder = "/tmp";
  std::string nvml_library = "libnvidia-ml.so.1";
  nlohmann::json versions = nlohmann::json::object();  ///< of pharos and libtorch, as the command knows them
  Benchmarks benchmarks;
  const lens::Environment* environment = nullptr;

  /// Path below `root`.
  std::filesystem::path path(const std::string& absolute) const;
  /// Whole text of a file of /proc, /sys or /dev without the last line end; nullopt when it cannot be read.
  std::optional<std::string> read(const std::string& absolute) const;
  /// The number a file begins with.
  std::optional<std::int64_t> read_number(const std::string& absolute) const;
  /// Names in a folder, sorted; none when it cannot be read.
  std::vector<std::string> list(const std::string& absolute) const;
  bool exists(const std::string& absolute) const;
  /// Value of an environment variable, empty when it is not set.
  std::string variable(const std::string& name) const;
};

/// Value of the first line "KEY…: VALUE" (or "KEY VALUE") of `text`, without blanks around it; empty when there is
/// none.
std::string field_of(const std::string& text, const std::string& key);
/// Numbers of a list as the kernel writes it: "0-3,8" has 5.
std::int64_t count_of_list(const std::string& list);
/// "1 core", "3 cores".
std::string counted(std::int64_t count, const std::string& noun);
/// `text` as a whole number from its beginning.
std::optional<std::int64_t> number_of(const std::string& text);
/// Number with `digits` behind the point.
std::string fixed(double value, int digits);

}  // namespace pharos::launch
