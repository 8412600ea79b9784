#include "pharos/launch/doctor/image/parts.h"

#include <regex>

#include "pharos/base/file.h"
#include "pharos/base/subprocess.h"
#include "pharos/launch/doctor/library.h"

namespace pharos::launch {
namespace {

struct Question {
  const Node& node;
  const std::string& wanted;
  const std::string& libtorch_version;
};

/// A library that could not be loaded: missing, or only for want of the driver that a host with GPUs brings.
FoundPart missing_library(const LoadedLibrary& library) {
  const bool needs_driver = library.error.starts_with("libcuda.so") || library.error.starts_with("libnvidia-ml.so");
  if (needs_driver) return {.version = {}, .path = library.error, .error = {}, .needs_driver = true};
  return {.version = {}, .path = {}, .error = library.error};
}

FoundPart find_nccl(const Question&) {
  const LoadedLibrary library = load_library({"libnccl.so.2"});
  if (!library.is_loaded()) return missing_library(library);
  return {.version = version_of_nccl(library), .path = library.path};
}

FoundPart find_cuda(const Question&) {
  const LoadedLibrary library = load_library({"libcudart.so.13", "libcudart.so.12", "libcudart.so"});
  if (!library.is_loaded()) return missing_library(library);
  auto* get = reinterpret_cast<int (*)(int*)>(library.find("cudaRuntimeGetVersion"));
  int code = 0;
  if (get == nullptr || get(&code) != 0) return {.version = {}, .path = library.path};
  return {.version = std::to_string(code / 1000) + "." + std::to_string(code % 1000 / 10), .path = library.path};
}

FoundPart find_gdrcopy(const Question&) {
  const LoadedLibrary library = load_library({"libgdrapi.so.2"});
  if (!library.is_loaded()) return missing_library(library);
  auto* get = reinterpret_cast<void (*)(int*, int*)>(library.find("gdr_runtime_get_version"));
  int major = 0, minor = 0;
  if (get != nullptr) get(&major, &minor);
  return {.version = get == nullptr ? "" : std::to_string(major) + "." + std::to_string(minor), .path = library.path};
}

FoundPart find_nvshmem(const Question&) {
  const LoadedLibrary library = load_library({"libnvshmem_host.so.3"});
  if (!library.is_loaded()) return missing_library(library);
  return {.version = {}, .path = library.path};
}

/// The installer of EFA writes a list of what it installed; libfabric is the part that NCCL's plug-in needs.
FoundPart find_efa(const Question& question) {
  const LoadedLibrary library = load_library({"libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1"});
  if (!library.is_loaded()) return missing_library(library);
  const std::string list = question.node.read("/opt/amazon/efa_installed_packages").value_or("");
  return {.version = field_of(list, "# EFA installer version"), .path = library.path};
}

/// The plug-in has no function that tells its version, but its text is in the file.
FoundPart find_plugin(const Question& question) {
  const LoadedLibrary library =
      load_library({"libnccl-net-ofi.so", "libnccl-net.so", "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so",
                    "/opt/amazon/ofi-nccl/lib/libnccl-net.so"});
  if (!library.is_loaded()) return missing_library(library);
  const base::MappedFile file(library.path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size_bytes());
  const bool has_version = bytes.find(question.wanted) != std::string_view::npos;
  return {.version = has_version ? question.wanted : "", .path = library.path};
}

FoundPart find_torch(const Question& question) { return {.version = question.libtorch_version}; }

FoundPart find_pharos(const Question& question) { return {.version = question.node.versions.value("pharos", "")}; }

FoundPart find_system(const Question& question) {
  std::string version = field_of(question.node.read("/etc/os-release").value_or(""), "VERSION_ID=");
  std::erase(version, '"');
  return {.version = version, .path = {}, .error = version.empty() ? "/etc/os-release has no VERSION_ID" : ""};
}

FoundPart program_at(const std::string& name, const std::string& other_place) {
  auto path = base::find_program(name);
  if (!path) path = base::find_program(other_place);
  if (!path) return {.version = {}, .path = {}, .error = "there is no program " + name};
  return {.version = {}, .path = path->string()};
}

FoundPart find_nccl_tests(const Question&) {
  return program_at("all_reduce_perf", "/opt/nccl-tests/build/all_reduce_perf");
}

FoundPart find_nsight(const Question&) {
  FoundPart part = program_at("nsys", "/usr/local/cuda/bin/nsys");
  if (!part.error.empty()) return part;
  const base::CommandResult result = base::run_command({.words = {part.path, "--version"}, .limit_ms = 20'000});
  std::smatch match;
  if (result.exit_code != 0) part.error = part.path + " --version left with code " + std::to_string(result.exit_code);
  if (std::regex_search(result.output, match, std::regex(R"(version (\d+\.\d+\.\d+))"))) part.version = match[1];
  return part;
}

struct Part {
  const char* name;  ///< in the table
  FoundPart (*find)(const Question&);
};

constexpr Part kParts[] = {
    {"CUDA_VERSION", find_cuda},       {"UBUNTU_VERSION", find_system},         {"DEBIAN_VERSION", find_system},
    {"GDRCOPY_VERSION", find_gdrcopy}, {"EFA_INSTALLER_VERSION", find_efa},     {"AWS_OFI_NCCL_VERSION", find_plugin},
    {"NCCL_VERSION", find_nccl},       {"NCCL_TESTS_VERSION", find_nccl_tests}, {"NVSHMEM_VERSION", find_nvshmem},
    {"TORCH_VERSION", find_torch},     {"PHAROS_VERSION", find_pharos},         {"NSIGHT_SYSTEMS_VERSION", find_nsight},
};

}  // namespace

std::optional<FoundPart> find_part(const Node& node, const std::string& name, const std::string& wanted,
                                   const std::string& libtorch_version) {
  for (const Part& part : kParts) {
    if (name == part.name) return part.find({.node = node, .wanted = wanted, .libtorch_version = libtorch_version});
  }
  return std::nullopt;
}

}  // namespace pharos::launch
