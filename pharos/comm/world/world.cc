#include "pharos/comm/world.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#if defined(USE_C10D_NCCL) && __has_include(<nccl.h>)
#define PHAROS_NCCL 1
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include "pharos/base/environment.h"
#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/comm/group/group_state.h"
#include "pharos/comm/world/rendezvous.h"
#include "pharos/comm/world/sockets.h"

namespace pharos::comm {
namespace {

using std::chrono::milliseconds;

#ifdef PHAROS_NCCL
constexpr bool kHasNccl = true;
#else
constexpr bool kHasNccl = false;
#endif

/// The interface Gloo's connections use: GLOO_SOCKET_IFNAME, else the one that leads to the master.
std::shared_ptr<gloo::transport::Device> make_device(const RankEnvironment& environment, const std::string& address) {
  if (const auto interface = base::get_environment("GLOO_SOCKET_IFNAME"); interface && !interface->empty()) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface->substr(0, interface->find(',')));
  }
  auto chosen = address;
  // On the master's own host its name often leads to the loopback interface, where no other host can connect.
  if (is_loopback_address(address) && !is_loopback_address(environment.master_address)) {
    if (auto outer = first_outer_address(); !outer.empty()) chosen = std::move(outer);
  }
  return c10d::ProcessGroupGloo::createDeviceForHostname(chosen);
}

/// Gloo writes to its sockets as to files: a peer that is gone must be an error of the call, not the end of this
/// process.
void ignore_broken_pipes() {
  struct sigaction action {};
  if (::sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

std::vector<std::int64_t> all_ranks(std::int64_t world_size) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

struct World::State {
  RankEnvironment environment;
  WorldOptions options;
  c10::intrusive_ptr<c10d::TCPStore> store;
  std::shared_ptr<gloo::transport::Device> device;
  std::shared_ptr<AtomicTimeout> timeout;
  std::unique_ptr<FlightGroup> store_calls;  ///< the exchanges over the store, as the flight record sees them
  std::map<std::string, std::unique_ptr<Group>> groups;
  std::vector<const Group*> order;  ///< groups as they were made

  void connect(GroupState& group, const std::string& name);
  FlightTicket record_store_call(Operation operation, const std::string& key);
  /// The first rank to fail says so to those that wait for it, in whatever exchange.
  void report(const Failure& failure);
  /// Until `key` is set. Throws what another rank has failed with. A rank that has failed itself waits until all others
  /// know: the store may end with it.
  void wait_for(const std::string& key, bool has_failed);
  void count_as_told();
  bool is_told = false;  ///< this rank has failed, or knows of one that has
};

constexpr const char* kFailure = "failure";
constexpr const char* kTold = "failure/told";

void World::State::report(const Failure& failure) {
  std::string text(1, failure.is_user_error ? 'u' : 't');
  text.append("Rank ").append(std::to_string(environment.rank)).append(" failed: ").append(failure.text);
  store->compareSet(kFailure, {}, to_bytes(text));
  count_as_told();
}

void World::State::count_as_told() {
  if (!std::exchange(is_told, true)) store->add(kTold, 1);
}

void World::State::wait_for(const std::string& key, bool has_failed) {
  using Clock = std::chrono::steady_clock;
  // A rank that fails may be anywhere, so its message is looked for as well: polling, more rarely with many ranks.
  const std::chrono::microseconds longest_pause = milliseconds(20 + environment.world_size / 4);
  std::chrono::microseconds pause(200);
  const auto end = Clock::now() + options.rendezvous_timeout;
  while (!store->check({key})) {
    if (has_failed && store->add(kTold, 0) == environment.world_size) throw std::runtime_error("others failed as well");
    if (!has_failed && store->check({kFailure}) && !store->check({key})) {
      count_as_told();
      const std::string text = to_text(store->get(kFailure));
      if (text.front() == 'u') throw base::UserError({.what = text.substr(1)});
      throw base::TrainingError(text.substr(1));
    }
    if (Clock::now() > end) throw std::runtime_error("time-out");
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, longest_pause);
  }
}

FlightTicket World::State::record_store_call(Operation operation, const std::string& key) {
  const auto number = store_calls->next_number(FlightGroup::kCollectives);
  auto* writer = FlightWriter::current();
  if (writer == nullptr) return {};
  auto ticket = writer->begin(*store_calls, {.operation = operation, .number = number, .purpose = key.c_str()});
  ticket.mark_wait();
  return ticket;
}

/// Makes the transports of a group of several ranks: every member comes here.
void World::State::connect(GroupState& group, const std::string& name) {
  const auto size = static_cast<int>(group.flight.ranks().size());
  const auto rank = static_cast<int>(group.rank);
  // Groups of one name are disjoint, so their first rank tells them apart.
  const auto prefix = "group/" + name + "/" + std::to_string(group.flight.ranks().front());
  FlightTicket ticket;
  if (auto* writer = FlightWriter::current()) {
    ticket = writer->begin(group.flight, {.operation = Operation::kBarrier, .purpose = "connections of the group"});
    ticket.mark_wait();
  }
  try {
    auto gloo = c10d::ProcessGroupGloo::Options::create(timeout->load());
    gloo->devices.push_back(device);
    group.host_backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>(prefix + "/gloo", store), rank, size, gloo);
#ifdef PHAROS_NCCL
    if (options.device.is_cuda()) {
      auto nccl = c10d::ProcessGroupNCCL::Options::create();
      nccl->timeout = timeout->load();
      group.cuda_backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
          c10::make_intrusive<c10d::PrefixStore>(prefix + "/nccl", store), rank, size, nccl);
    }
#endif
    ticket.mark_end();
  } catch (const std::exception& reason) {
    const std::string text = reason.what();
    throw CommunicationError("Group " + group.describe() + " could not be made: " + text.substr(0, text.find('\n')));
  }
}

World::World(const RankEnvironment& environment, const WorldOptions& options) : state_(std::make_unique<State>()) {
  state_->environment = environment;
  state_->options = options;
  state_->timeout = std::make_shared<AtomicTimeout>(options.timeout);
  if (environment.world_size == 1) return;
  state_->store_calls = std::make_unique<FlightGroup>("store", all_ranks(environment.world_size));
  if (options.device.is_cuda() && !kHasNccl) {
    throw base::UserError({.what = "This build of the program cannot run several ranks on CUDA devices.",
                           .why = "It was built without NCCL.",
                           .fix = "Build it with a libtorch that has CUDA and with NCCL's header nccl.h."});
  }
  auto meeting = meet(environment, options.rendezvous_timeout);
  state_->store = std::move(meeting.store);
  ignore_broken_pipes();
  state_->device = make_device(environment, meeting.local_address);
}

World::~World() {
  if (is_abandoned_) static_cast<void>(state_.release());
}

void World::abandon() { is_abandoned_ = true; }

std::int64_t World::rank() const { return state_->environment.rank; }
std::int64_t World::size() const { return state_->environment.world_size; }
const RankEnvironment& World::environment() const { return state_->environment; }
at::Device World::device() const { return state_->options.device; }

std::vector<std::string> World::exchange(const std::string& key, const std::string& text,
                                         const std::optional<Failure>& failure) {
  if (size() == 1) return {text};
  const auto prefix = "exchange/" + key + "/";
  std::vector<std::string> keys;
  for (std::int64_t member = 0; member < size(); ++member) keys.push_back(prefix + std::to_string(member));
  auto ticket = state_->record_store_call(Operation::kAllGather, key);
  try {
    state_->store->set(keys[static_cast<std::size_t>(rank())], to_bytes(text));
    const std::string all = prefix + "all";
    if (state_->store->add(prefix + "count", 1) == size()) state_->store->set(all, {1});
    if (failure) state_->report(*failure);
    state_->wait_for(all, failure.has_value());
    std::vector<std::string> texts;
    for (const auto& bytes : state_->store->multiGet(keys)) texts.push_back(to_text(bytes));
    ticket.mark_end();
    return texts;
  } catch (const base::UserError&) {
    throw;
  } catch (const base::TrainingError&) {
    throw;
  } catch (const std::exception& reason) {
    const std::string said = reason.what();
    throw CommunicationError("The exchange of \"" + key + "\" among all ranks broke (" +
                             said.substr(0, said.find('\n')) + "): a rank has ended or did not come.");
  }
}

std::string World::announce(const std::string& key, const std::string& text) {
  if (size() == 1) return text;
  const auto full_key = "announce/" + key;
  auto ticket = state_->record_store_call(Operation::kBroadcast, key);
  try {
    if (rank() == 0) state_->store->set(full_key, to_bytes(text));
    state_->wait_for(full_key, false);
    auto announced = to_text(state_->store->get(full_key));
    ticket.mark_end();
    return announced;
  } catch (const base::UserError&) {
    throw;
  } catch (const base::TrainingError&) {
    throw;
  } catch (const std::exception& reason) {
    const std::string said = reason.what();
    throw CommunicationError("Rank 0's \"" + key + "\" did not come (" + said.substr(0, said.find('\n')) + ").");
  }
}

Group& World::group(const std::string& name, const std::vector<std::int64_t>& ranks) {
  if (const auto known = state_->groups.find(name); known != state_->groups.end()) {
    PHAROS_CHECK(known->second->ranks() == ranks, "group " + name + " was made of other ranks");
    return *known->second;
  }
  const auto self = std::ranges::find(ranks, rank());
  PHAROS_CHECK(self != ranks.end() && std::ranges::is_sorted(ranks), "group " + name + " needs this rank, in order");
  std::unique_ptr<GroupState> group(new GroupState{.flight = FlightGroup(name, ranks),
                                                   .rank = self - ranks.begin(),
                                                   .timeout = state_->timeout,
                                                   .host_backend = nullptr,
                                                   .cuda_backend = nullptr,
                                                   .failure = {}});
  if (ranks.size() > 1) state_->connect(*group, name);
  auto& made = state_->groups[name];
  made.reset(new Group(std::move(group)));
  state_->order.push_back(made.get());
  return *made;
}

Group& World::group(const Mesh& mesh, const std::vector<MeshDim>& dims) {
  std::vector<std::string> names;
  for (const auto dim : dims) names.emplace_back(mesh_dim_name(dim));
  return group(base::join(names, "-"), mesh.group(rank(), dims));
}

Group& World::all() { return group("world", all_ranks(size())); }

std::vector<std::pair<std::string, std::vector<std::int64_t>>> World::groups() const {
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> made;
  for (const auto* group : state_->order) made.emplace_back(group->name(), group->ranks());
  return made;
}

void World::set_timeout(milliseconds timeout) {
  state_->timeout->store(timeout);
  for (auto& [name, group] : state_->groups) {
    if (auto& backend = group->state_->host_backend) backend->setTimeout(timeout);
    if (auto& backend = group->state_->cuda_backend) backend->setTimeout(timeout);
  }
}

void World::leave() {
  if (size() == 1) return;
  constexpr auto kPatience = std::chrono::seconds(5);
  try {
    if (state_->store->add("leave/count", 1) == size()) state_->store->set("leave/all", {1});
    state_->store->wait({"leave/all"}, kPatience);
    // Rank 0 takes the store with it: it goes once the others have read this.
    if (state_->store->add("leave/read", 1) == size()) state_->store->set("leave/done", {1});
    if (rank() == 0) state_->store->wait({"leave/done"}, kPatience);
  } catch (const std::exception&) {
    // A rank that is gone or late is found by who waits for the process, not here on the way out.
  }
}

}  // namespace pharos::comm
