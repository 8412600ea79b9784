#include "pharos/profile/counters/counter_sampler.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>

#include "pharos/lens/record/ring.h"
#include "pharos/lens/test_support.h"
#include "pharos/profile/counters/publish.h"

namespace pharos::profile {
namespace {

const Port kPort{PortKind::kNetwork, "eth0", ""};
constexpr CounterKind kTransmit{"transmit", 1};
constexpr CounterKind kErrors{"tx_errors"};

/// A device whose counters the test sets.
struct Device {
  std::atomic<std::uint64_t> bytes{0}, errors{0};
  std::atomic<int> num_readings{0};

  Reading read() {
    ++num_readings;
    return {{kPort, {{&kTransmit, bytes}, {&kErrors, errors}}}};
  }
  void wait_for_readings(int number) const {
    while (num_readings < number) std::this_thread::yield();
  }
};

void ignore(const SampledTraffic&) {}

/// Marks are served before finish() returns; nothing is lost between steps, whatever the thread does in between.
TEST(CounterSampler, EndsTheTrafficOfEachStepAtItsMark) {
  Device device;
  device.bytes = 1000;
  CounterSampler sampler([&] { return device.read(); }, 1000, 10, ignore);
  std::vector<StepTraffic> steps;
  for (std::int64_t step = 11; step <= 13; ++step) {
    device.bytes += static_cast<std::uint64_t>(step);
    sampler.mark(step);
    while (steps.size() < static_cast<std::size_t>(step - 10)) {
      for (StepTraffic& finished : sampler.take()) steps.push_back(std::move(finished));
    }
  }
  device.bytes += 100;
  device.errors = 2;
  sampler.mark(14);
  for (StepTraffic& finished : sampler.finish()) steps.push_back(std::move(finished));
  ASSERT_EQ(steps.size(), 4u);
  const std::uint64_t expected[] = {11, 12, 13, 100};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(steps[i].first_step, static_cast<std::int64_t>(11 + i));
    EXPECT_EQ(steps[i].last_step, steps[i].first_step);
    EXPECT_EQ(steps[i].ports[kPort].bytes["transmit"], expected[i]);
    EXPECT_GT(steps[i].duration_ns, 0);
  }
  EXPECT_EQ(steps[3].ports[kPort].events["tx_errors"], 2u);
  EXPECT_TRUE(sampler.finish().empty());
}

TEST(CounterSampler, StepsShorterThanItCanFollowShareTheirTraffic) {
  Device device;
  CounterSampler sampler([&] { return device.read(); }, 0.01, 0, ignore);  // one reading in 100 s
  device.bytes = 5;
  for (std::int64_t step = 1; step <= 40; ++step) sampler.mark(step);
  const std::vector<StepTraffic> steps = sampler.finish();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].first_step, 1);
  EXPECT_EQ(steps[0].last_step, 40);
  EXPECT_EQ(device.num_readings, 2);
}

TEST(CounterSampler, SaysWhyItStopped) {
  std::atomic<int> num_readings{0};
  CounterSampler sampler(
      [&]() -> Reading {
        if (++num_readings > 1) throw std::runtime_error("no more memory");
        return {};
      },
      1000, 0, ignore);
  while (sampler.failure().empty()) std::this_thread::yield();
  EXPECT_EQ(sampler.failure(), "no more memory");
  sampler.mark(1);
  EXPECT_TRUE(sampler.finish().empty());
}

/// Neither the beginning nor the end waits for a device that hangs; once it answers, everything goes on.
TEST(CounterSampler, WaitsForNoDevice) {
  using std::chrono::milliseconds;
  struct Hanging {
    Device device;
    std::atomic<bool> is_blocked{true};
    std::atomic<int> num_entered{0}, num_left{0}, num_published{0};
  };
  const auto shared = std::make_shared<Hanging>();  // a thread that is left behind has it still
  const auto read = [shared] {
    ++shared->num_entered;
    while (shared->is_blocked) std::this_thread::yield();
    Reading reading = shared->device.read();
    ++shared->num_left;
    return reading;
  };
  auto sampler = std::make_unique<CounterSampler>(
      read, 1000, 0, [shared](const SampledTraffic&) { ++shared->num_published; }, milliseconds(1));
  EXPECT_FALSE(sampler->first_reading());
  sampler->mark(1);
  EXPECT_TRUE(sampler->take().empty());
  shared->is_blocked = false;
  while (!sampler->first_reading()) std::this_thread::yield();
  while (sampler->take().empty()) std::this_thread::yield();
  EXPECT_EQ(sampler->failure(), "");

  shared->is_blocked = true;
  while (shared->num_entered == shared->num_left) std::this_thread::yield();
  sampler->mark(2);
  EXPECT_TRUE(sampler->finish().empty());
  EXPECT_EQ(sampler->failure(), "a device has not answered for 1 ms");
  const int num_published = shared->num_published;
  sampler.reset();
  shared->is_blocked = false;
  while (shared.use_count() > 2) std::this_thread::yield();  // `read` has one; the thread has ended
  EXPECT_EQ(shared->num_published, num_published);
}

TEST(CounterSampler, WritesCounterEventsThatAddUp) {
  const lens::TemporaryFolder folder;
  lens::TelemetryOptions options;
  options.run_folder = folder.path();
  lens::MemoryTelemetry memory(lens::kEveryGroup, options);
  Device device;
  {
    CounterSampler sampler([&] { return device.read(); }, 1000, 0, publish);
    for (int i = 0; i < 5; ++i) {
      device.bytes += 7;
      device.wait_for_readings(device.num_readings + 2);
    }
  }
  EXPECT_TRUE(memory.spans().empty()) << "counter events are no spans";
  const lens::RingContents contents = lens::read_ring(memory.telemetry().ring_path());
  EXPECT_TRUE(contents.spans.empty());
  std::int64_t sum = 0, last_ns = 0;
  ASSERT_GE(contents.counters.size(), 5u);
  for (const lens::CounterEvent& event : contents.counters) {
    EXPECT_EQ(event.name, "network");
    EXPECT_TRUE(last_ns == 0 || event.start_ns == last_ns) << "events follow each other without a gap";
    last_ns = event.end_ns;
    ASSERT_EQ(event.attributes.size(), 2u);
    EXPECT_EQ(event.attributes[0].second, lens::StoredValue(std::vector<std::string>{"eth0"}));
    EXPECT_EQ(event.attributes[1].first, "network.transmit_bytes");
    sum += std::get<std::vector<std::int64_t>>(event.attributes[1].second).at(0);
  }
  EXPECT_EQ(sum, 35);
}

/// The thread is not there in a child, and the child must not wait for it.
TEST(CounterSampler, AForkedChildLeavesByItself) {
  Device device;
  CounterSampler sampler([&] { return device.read(); }, 1000, 0, ignore);
  const pid_t child = fork();
  if (child == 0) _exit(7);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  device.bytes = 3;
  sampler.mark(1);
  EXPECT_EQ(sampler.finish().size(), 1u) << "the parent samples on";
}

}  // namespace
}  // namespace pharos::profile
