#include "pharos/comm/testing.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "pharos/comm/world/sockets.h"

namespace pharos::comm::testing {

void run_ranks(std::int64_t num_ranks, const std::function<void(World&)>& body, const WorldOptions& options) {
  const int socket = open_listen_socket(0, true);
  const auto port = port_of(socket);
  std::mutex mutex;
  std::exception_ptr first;
  const auto note_failure = [&] {
    const std::lock_guard lock(mutex);
    if (!first) first = std::current_exception();
  };
  const auto run = [&](std::int64_t rank) {
    try {
      RankEnvironment environment;
      environment.rank = environment.local_rank = rank;
      environment.world_size = environment.local_world_size = num_ranks;
      environment.master_port = port;
      environment.source = "run_ranks";
      if (rank == 0) environment.listen_socket = socket;
      World world(environment, options);
      try {
        body(world);
        world.leave();
      } catch (...) {
        note_failure();  // while the connections stand: peers fail when they break
      }
    } catch (...) {
      note_failure();
    }
  };
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) threads.emplace_back(run, rank);
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace pharos::comm::testing
