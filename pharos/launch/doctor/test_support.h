// A node that never was: files of /proc, /sys and /dev in a temporary folder.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "pharos/launch/doctor/node.h"

namespace pharos::launch::testing {

class RecordedNode {
 public:
  explicit RecordedNode(std::map<std::string, std::string> variables = {}) : environment_(std::move(variables)) {
    std::string name = (std::filesystem::temp_directory_path() / "pharos_node_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    node_.root = name;
    node_.host = "n1";
    node_.environment = &environment_;
  }
  ~RecordedNode() { std::filesystem::remove_all(node_.root); }
  RecordedNode(const RecordedNode&) = delete;
  RecordedNode& operator=(const RecordedNode&) = delete;

  RecordedNode& write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(node_.path(path).parent_path());
    std::ofstream(node_.path(path)) << text << "\n";
    return *this;
  }

  /// A port of an RDMA device as the kernel shows it.
  RecordedNode& add_rdma(const std::string& name, const std::string& vendor, const std::string& state,
                         const std::string& link_layer) {
    const std::string folder = "/sys/class/infiniband/" + name;
    write(folder + "/device/vendor", vendor);
    write(folder + "/ports/1/state", state);
    write(folder + "/ports/1/rate", "400 Gb/sec (4X NDR)");
    return write(folder + "/ports/1/link_layer", link_layer);
  }

  const Node& node() const { return node_; }
  Node& node() { return node_; }

 private:
  lens::MapEnvironment environment_;
  Node node_;
};

/// The finding of `check` and `subject`; throws when there is none.
inline const Finding& find(const Findings& findings, const std::string& check, const std::string& subject = {}) {
  for (const Finding& finding : findings) {
    if (finding.check == check && finding.subject == subject) return finding;
  }
  throw std::runtime_error("no finding " + check + " " + subject);
}

}  // namespace pharos::launch::testing
