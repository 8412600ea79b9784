#include "pharos/profile/counters/counter_tree.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>
#include <unordered_map>

namespace pharos::profile {
namespace {

namespace fs = std::filesystem;
/// Those below are never destroyed: a thread that hung in a device may need them while the process ends.
using CounterTable = std::unordered_map<std::string_view, CounterKind>;

void add_events(CounterTable& table, std::initializer_list<std::string_view> names, int width_bits) {
  for (const std::string_view name : names) table.emplace(name, CounterKind{name, 0, width_bits});
}

/// Port counters of the InfiniBand architecture. Its data counters count words of four bytes; devices without the
/// extended counters have 32 bits of them.
const CounterTable& port_counters() {
  static const auto& kTable = *new CounterTable([] {
    CounterTable table{{"port_xmit_data", {"transmit", 4, 32}}, {"port_rcv_data", {"receive", 4, 32}}};
    add_events(table,
               {"symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards",
                "local_link_integrity_errors", "excessive_buffer_overrun_errors", "port_xmit_wait"},
               32);
    return table;
  }());
  return kTable;
}

/// Counters of the driver: EFA's (64 bits) and those of mlx5, whose hardware has 32 bits for most.
const CounterTable& driver_counters() {
  static const auto& kTable = *new CounterTable([] {
    CounterTable table{{"tx_bytes", {"transmit", 1}},
                       {"rx_bytes", {"receive", 1}},
                       {"rdma_read_bytes", {"rdma_read", 1}},
                       {"rdma_write_bytes", {"rdma_write", 1}},
                       {"rdma_write_recv_bytes", {"rdma_write_receive", 1}},
                       {"retrans_bytes", {"retransmit", 1}}};
    add_events(table,
               {"rx_drops", "rdma_read_wr_err", "rdma_write_wr_err", "retrans_pkts", "retrans_timeout_events",
                "impaired_remote_conn_events", "unresponsive_remote_events"},
               64);
    add_events(table,
               {"out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "out_of_buffer",
                "implied_nak_seq_err", "req_cqe_error", "resp_cqe_error", "rx_icrc_encapsulated", "roce_adp_retrans",
                "roce_adp_retrans_to", "np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled"},
               32);
    return table;
  }());
  return kTable;
}

/// The kernel keeps these in 64 bits.
const CounterTable& network_counters() {
  static const auto& kTable = *new CounterTable([] {
    CounterTable table{{"tx_bytes", {"transmit", 1}}, {"rx_bytes", {"receive", 1}}};
    add_events(table, {"tx_errors", "rx_errors", "tx_dropped", "rx_dropped"}, 64);
    return table;
  }());
  return kTable;
}

/// A file of sysfs says its value in one read.
std::optional<std::uint64_t> read_number(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return std::nullopt;
  char text[32];
  const ssize_t length = ::read(descriptor, text, sizeof text);
  ::close(descriptor);
  if (length <= 0) return std::nullopt;
  std::uint64_t number = 0;
  const char* end = text + length;
  const auto [rest, error] = std::from_chars(text, end, number);
  const bool is_whole = error == std::errc() && std::all_of(rest, end, [](char c) { return c == '\n' || c == ' '; });
  return is_whole ? std::optional(number) : std::nullopt;
}

/// Names in `folder`, sorted; none where it cannot be listed.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error))
    names.push_back(entries->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// What another folder of the port has counted already is left out.
void read_folder(const fs::path& folder, const CounterTable& table, std::vector<CounterValue>& values) {
  for (const std::string& name : names_in(folder)) {
    const auto kind = table.find(name);
    if (kind == table.end()) continue;
    const auto is_same = [&](const CounterValue& value) { return value.kind->label == kind->second.label; };
    if (std::any_of(values.begin(), values.end(), is_same)) continue;
    if (const auto number = read_number(folder / name)) values.push_back({&kind->second, *number});
  }
}

void add_port(Reading& reading, Port port, std::vector<CounterValue> values) {
  if (!values.empty()) reading.push_back({std::move(port), std::move(values)});
}

}  // namespace

Reading read_counter_tree(const fs::path& root) {
  Reading reading;
  const fs::path infiniband = root / "class/infiniband";
  for (const std::string& device : names_in(infiniband)) {
    for (const std::string& port : names_in(infiniband / device / "ports")) {
      const fs::path folder = infiniband / device / "ports" / port;
      std::vector<CounterValue> values;
      read_folder(folder / "counters", port_counters(), values);
      read_folder(folder / "hw_counters", driver_counters(), values);
      add_port(reading, {PortKind::kInfiniband, device, port}, std::move(values));
    }
  }
  const fs::path network = root / "class/net";
  const std::vector<std::string> devices = names_in(network);
  const bool is_loopback_alone = devices.size() == 1 && reading.empty();
  for (const std::string& device : devices) {
    if (device == "lo" && !is_loopback_alone) continue;
    std::vector<CounterValue> values;
    read_folder(network / device / "statistics", network_counters(), values);
    add_port(reading, {PortKind::kNetwork, device, ""}, std::move(values));
  }
  return reading;
}

}  // namespace pharos::profile
