#include "pharos/comm/flight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/comm/flight/writer.h"

namespace pharos::comm {
namespace {

std::filesystem::path path_of(const std::string& name) { return std::filesystem::path(::testing::TempDir()) / name; }

FlightTicket call(FlightWriter& writer, FlightGroup& group, const char* purpose = "test", std::size_t channel = 0) {
  const bool is_transfer = channel != FlightGroup::kCollectives;
  return writer.begin(group, {.operation = is_transfer ? Operation::kSend : Operation::kAllReduce,
                              .channel = channel,
                              .number = group.next_number(channel),
                              .purpose = purpose,
                              .bytes = 8,
                              .peer = is_transfer ? 2 : -1});
}

TEST(FlightRecord, WhatIsWrittenIsRead) {
  FlightWriter writer(path_of("written.flight"), 3, 8);
  writer.report("evaluation", 7, 123);
  writer.show_life(456);
  FlightGroup group("dp-cp", {1, 3, 5});
  auto ended = writer.begin(group, {.operation = Operation::kReduceScatter,
                                    .number = group.next_number(0),
                                    .purpose = "gradient bucket",
                                    .purpose_index = 2,
                                    .bytes = 4096});
  ended.mark_start();
  ended.mark_wait();
  ended.mark_end();
  [[maybe_unused]] const auto pending =
      writer.begin(group, {.operation = Operation::kReceive,
                           .channel = FlightGroup::receive_channel(2),
                           .number = group.next_number(FlightGroup::receive_channel(2)),
                           .purpose = "a purpose that is longer than the record has room for, by far",
                           .bytes = 1,
                           .peer = 5});
  const auto state = read_flight_record(path_of("written.flight"));
  EXPECT_EQ(state.rank, 3);
  EXPECT_EQ(state.world_size, 8);
  EXPECT_EQ(state.pid, ::getpid());
  EXPECT_FALSE(state.host.empty());
  EXPECT_EQ(state.phase, "evaluation");
  EXPECT_EQ(state.step, 7);
  EXPECT_EQ(state.progress_ns, 123);
  EXPECT_EQ(state.alive_ns, 456);
  ASSERT_EQ(state.flights.size(), 2U);
  const auto& first = state.flights[0];
  EXPECT_EQ(first.group, "dp-cp");
  EXPECT_EQ(first.ranks, (std::vector<std::int64_t>{1, 3, 5}));
  EXPECT_EQ(first.number, 1U);
  EXPECT_EQ(first.operation, Operation::kReduceScatter);
  EXPECT_EQ(first.purpose, "gradient bucket 2");
  EXPECT_EQ(first.bytes, 4096);
  EXPECT_FALSE(first.is_pending());
  EXPECT_LE(first.arrival_ns, first.start_ns);
  EXPECT_LE(first.start_ns, first.wait_ns);
  EXPECT_LE(first.wait_ns, first.end_ns);
  const auto& second = state.flights[1];
  EXPECT_TRUE(second.is_pending());
  EXPECT_EQ(second.peer, 5);
  EXPECT_EQ(second.purpose, "a purpose that is longer than the record has ro");
}

TEST(FlightRecord, PendingAndNewestCallsStay) {
  FlightWriter writer(path_of("many.flight"), 0, 2);
  FlightGroup busy("dp", {0, 1}), quiet("tp", {0, 1});
  auto pending = call(writer, busy, "pending");
  call(writer, quiet, "newest of tp").mark_end();
  call(writer, quiet, "newest send", FlightGroup::send_channel(1)).mark_end();
  constexpr std::uint64_t kNumCalls = 5000;
  for (std::uint64_t i = 0; i < kNumCalls; ++i) call(writer, busy).mark_end();
  const auto flights = writer.read().flights;
  ASSERT_EQ(flights.size(), flight_format::kNumEntries);
  EXPECT_EQ(flights[0].purpose, "pending");
  EXPECT_EQ(flights[1].purpose, "newest of tp");
  EXPECT_EQ(flights[2].purpose, "newest send");
  EXPECT_EQ(flights[3].number, kNumCalls + 1 - (flight_format::kNumEntries - 4));
  EXPECT_EQ(flights.back().number, kNumCalls + 1);
  pending.mark_end();
  for (int i = 0; i < 2000; ++i) call(writer, busy).mark_end();
  EXPECT_NE(writer.read().flights.front().purpose, "pending");
}

TEST(FlightRecord, MorePendingCallsThanPlaces) {
  FlightWriter writer(path_of("full.flight"), 0, 2);
  FlightGroup group("dp", {0, 1});
  std::vector<FlightTicket> tickets;
  for (std::uint32_t i = 0; i < flight_format::kNumEntries + 10; ++i) tickets.push_back(call(writer, group));
  EXPECT_EQ(writer.read().flights.size(), flight_format::kNumEntries);
  for (auto& ticket : tickets) ticket.mark_end();
  [[maybe_unused]] const auto last = call(writer, group, "last");
  EXPECT_EQ(writer.read().flights.back().purpose, "last");
}

TEST(FlightRecord, OfAKilledProcess) {
  const auto path = path_of("killed.flight");
  const auto child = ::fork();
  if (child == 0) {
    FlightWriter writer(path, 1, 2);
    FlightGroup group("pp", {0, 1});
    call(writer, group, "done").mark_end();
    [[maybe_unused]] const auto ticket = call(writer, group, "under way");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const auto state = read_flight_record(path);
  EXPECT_EQ(state.pid, child);
  ASSERT_EQ(state.flights.size(), 2U);
  EXPECT_FALSE(state.flights[0].is_pending());
  EXPECT_TRUE(state.flights[1].is_pending());
  EXPECT_EQ(state.flights[1].purpose, "under way");
}

TEST(FlightRecord, SeveralThreadsAndAReader) {
  FlightWriter writer(path_of("threads.flight"), 0, 2);
  std::atomic<bool> is_over = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&writer, i] {
      FlightGroup group(std::string(static_cast<std::size_t>(i) + 1, 'g'), {0, 1});
      for (int n = 0; n < 3000; ++n) call(writer, group, group.name().c_str()).mark_end();
    });
  }
  std::thread reader([&] {
    while (!is_over) {
      for (const auto& flight : writer.read().flights) EXPECT_EQ(flight.purpose, flight.group);
    }
  });
  for (auto& thread : threads) thread.join();
  is_over = true;
  reader.join();
  EXPECT_EQ(writer.read().flights.size(), flight_format::kNumEntries);
}

TEST(FlightRecord, DamagedFiles) {
  const auto path = path_of("whole.flight");
  {
    FlightWriter writer(path, 0, 2);
    FlightGroup group("dp", {0, 1});
    call(writer, group).mark_end();
  }
  const auto whole = base::read_file(path);
  const auto with = [&](std::size_t place, char byte) {
    auto text = whole;
    text[place] = byte;
    return text;
  };
  const auto entry = flight_format::kEntriesOffset + sizeof(std::uint64_t);
  const struct {
    std::string content;
    const char* said;
  } kCases[] = {
      {"", "too short"},
      {whole.substr(0, 100), "too short"},
      {whole.substr(0, whole.size() - 1), "cut off"},
      {with(0, 'X'), "begins differently"},
      {with(offsetof(flight_format::Header, version), 9), "another version"},
      {with(entry + offsetof(flight_format::EntryData, operation), 99), "unknown operation"},
      {with(entry + offsetof(flight_format::EntryData, group) + 2, 1), "outside its table"},
      {with(flight_format::kGroupAreaOffset + offsetof(flight_format::GroupHead, num_ranks) + 1, 1),
       "a group is cut off"},
      {with(offsetof(flight_format::Header, group_bytes) + 4, 1), "table of groups is damaged"},
  };
  for (const auto& [content, said] : kCases) {
    const auto damaged = path_of("damaged.flight");
    std::ofstream(damaged, std::ios::binary) << content;
    try {
      read_flight_record(damaged);
      ADD_FAILURE() << "no error: " << said;
    } catch (const base::UserError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(said));
    }
  }
}

}  // namespace
}  // namespace pharos::comm
