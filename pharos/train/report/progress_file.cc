#include "pharos/train/report/progress_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "pharos/base/clock.h"
#include "pharos/base/environment.h"
#include "pharos/base/error.h"
#include "pharos/base/untrusted/regular_file.h"

namespace pharos::train {

ProgressFile::ProgressFile(std::filesystem::path path, bool enabled, std::int64_t world_size)
    : path_(std::move(path)), enabled_(enabled), world_size_(world_size) {}

void ProgressFile::append(const std::string& event) const {
  if (!enabled_) return;
  std::error_code
      ignored;  // a folder that cannot be made shows as a file that cannot be opened, and costs only this line
  std::filesystem::create_directories(path_.parent_path(), ignored);
  const std::string line =
      fmt::format("{}\tJob ID: {}\t# GPUs: {}\t{}\n", base::format_local_time(base::wall_ns()).substr(0, 19),
                  base::get_environment("SLURM_JOB_ID").value_or(""), world_size_, event);
  try {
    const int descriptor = base::open_regular_file(path_, O_WRONLY | O_CREAT | O_APPEND);
    [[maybe_unused]] const ssize_t written = ::write(descriptor, line.data(), line.size());
    ::close(descriptor);
  } catch (const base::UserError&) {
    // A progress file that is none costs its lines.
  }
}

std::string saved_checkpoint_event(std::int64_t iteration, double job_flops, double job_seconds, double total_flops,
                                   std::int64_t total_tokens, std::int64_t world_size) {
  return fmt::format(
      "Saved checkpoint\tIteration: {}\tJob throughput: {:.1f} TFLOP/s/GPU\tFloating-point operations: {:.2e}\tTokens "
      "(in billions): {:.2f}",
      iteration, job_flops / job_seconds / 1e12 / static_cast<double>(world_size), total_flops,
      static_cast<double>(total_tokens) / 1e9);
}

}  // namespace pharos::train
