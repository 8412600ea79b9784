// A folder with stand-ins for SLURM's commands and a shell that finds them first.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "pharos/base/environment.h"
#include "pharos/base/file.h"
#include "pharos/launch/slurm/slurm_request.h"

namespace pharos::launch::slurm::testing {

class FakeSlurmTest : public ::testing::Test {
 protected:
  FakeSlurmTest() {
    std::string name = (std::filesystem::temp_directory_path() / "pharos_slurm_XXXXXX").string();
    folder = mkdtemp(name.data());
    path_before_ = base::get_environment("PATH").value_or("/usr/bin:/bin");
    std::filesystem::create_directories(folder / "bin");
    setenv("PATH", ((folder / "bin").string() + ":" + path_before_).c_str(), 1);
  }
  ~FakeSlurmTest() override {
    setenv("PATH", path_before_.c_str(), 1);
    std::filesystem::remove_all(folder);
  }

  /// A command of that name: a shell script in which $F is the folder.
  void fake(const std::string& name, const std::string& body) const {
    const std::filesystem::path path = folder / "bin" / name;
    base::write_file_atomically(path, "#!/bin/bash\nF='" + folder.string() + "'\n" + body + "\n");
    chmod(path.c_str(), 0755);
  }

  std::filesystem::path folder;

 private:
  std::string path_before_;
};

}  // namespace pharos::launch::slurm::testing
