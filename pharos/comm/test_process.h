// Child processes of this module's tests.
#pragma once

#include <string>
#include <vector>

namespace pharos::comm::testing {

struct Ended {
  int status = 0;  ///< of waitpid
  std::string errors;
};

/// A comm_probe under way.
class Process {
 public:
  /// `variables` are added to this process's environment, "NAME=value".
  Process(std::vector<std::string> arguments, const std::vector<std::string>& variables);
  Ended wait();

 private:
  int pid_ = -1;
  int errors_ = -1;
};

}  // namespace pharos::comm::testing
