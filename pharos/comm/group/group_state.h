// What a Group and a Work are made of. Needs c10d's headers: only for group.cc, transport.cc and world.cc.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "pharos/comm/flight/writer.h"
#include "pharos/comm/group.h"
#include "pharos/lens/span.h"

namespace pharos::comm {

using AtomicTimeout = std::atomic<std::chrono::milliseconds>;

struct GroupState {
  FlightGroup flight;
  std::int64_t rank = 0;
  std::shared_ptr<const AtomicTimeout> timeout;    ///< the World's, of each collective
  c10::intrusive_ptr<c10d::Backend> host_backend;  ///< Gloo; none in a group of one
  c10::intrusive_ptr<c10d::Backend> cuda_backend;  ///< NCCL; none without CUDA
  std::string failure;                             ///< of a Work whose destructor met it

  /// The name and "ranks 0, 2".
  std::string describe() const;
};

struct WorkState {
  GroupState* group = nullptr;
  FlightCall call;
  FlightTicket ticket;
  lens::ManagedSpan span;
  std::vector<c10::intrusive_ptr<c10d::Work>> transfers;
  std::vector<at::Tensor> kept;  ///< buffers of the transfers
  std::function<void()> finish;  ///< what is left to do once all transfers have ended
  int num_exceptions = 0;        ///< under way when the call was made
  bool is_done = false;

  void wait();
};

}  // namespace pharos::comm
