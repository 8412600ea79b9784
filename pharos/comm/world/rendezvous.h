// How the ranks of a job find each other: the store, which rank 0 serves, and a first round in it in which every
// mistake of a start has its own words.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "pharos/comm/rank_environment.h"

namespace pharos::comm {

struct Meeting {
  c10::intrusive_ptr<c10d::TCPStore> store;
  std::string local_address;  ///< numeric, of the interface this rank reaches the master by
};

/// Meets all ranks; see World's constructor for the errors.
Meeting meet(const RankEnvironment& environment, std::chrono::milliseconds timeout);

std::vector<std::uint8_t> to_bytes(const std::string& text);
std::string to_text(const std::vector<std::uint8_t>& bytes);

}  // namespace pharos::comm
