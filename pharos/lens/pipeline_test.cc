#include "pharos/lens/pipeline.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>

#include "pharos/lens/metrics/meter.h"

namespace pharos::lens {
namespace {

using otlp::Signal;
using std::chrono::milliseconds;

/// Takes connections (the kernel does) and never answers.
class SilentReceiver {
 public:
  SilentReceiver() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket_, generic, size), 0);
    EXPECT_EQ(::listen(socket_, 16), 0);
    EXPECT_EQ(::getsockname(socket_, generic, &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~SilentReceiver() { ::close(socket_); }

  PipelineOptions options() const {
    PipelineOptions options;
    options.otlp.emplace();
    for (otlp::SignalOptions& signal : *options.otlp) {
      signal.protocol = otlp::Protocol::kHttpProtobuf;
      signal.url = "http://127.0.0.1:" + std::to_string(port_) + "/v1/any";
    }
    return options;
  }

 private:
  int socket_;
  int port_ = 0;
};

ItemCounts counts(const Pipeline& pipeline, Signal signal) {
  return pipeline.counts()[static_cast<std::size_t>(signal)];
}

TEST(Pipeline, WantedCollectionIsSettledOnlyWhenTheReceiverHasAnswered) {
  const SilentReceiver receiver;
  MeterProvider metrics;
  metrics.meter().create_gauge<double>("test.gauge").set(1.0);
  Pipeline pipeline(receiver.options(), {}, &metrics, nullptr);
  pipeline.request_collection();
  const Pipeline::Position position = pipeline.position();
  EXPECT_FALSE(pipeline.is_settled(position));
  pipeline.turn(true, milliseconds(10));
  EXPECT_EQ(counts(pipeline, Signal::kMetrics).queued, 1U);
  EXPECT_FALSE(pipeline.is_settled(position));
  pipeline.give_up();
  EXPECT_TRUE(pipeline.is_settled(position));
  EXPECT_EQ(counts(pipeline, Signal::kMetrics).failed, 1U);
}

TEST(Pipeline, CollectionOfNothingAndOneThatIsGivenUpAreSettled) {
  const SilentReceiver receiver;
  MeterProvider metrics;
  Pipeline pipeline(receiver.options(), {}, &metrics, nullptr);
  pipeline.request_collection();
  const Pipeline::Position position = pipeline.position();
  pipeline.turn(true, milliseconds(10));
  EXPECT_TRUE(pipeline.is_settled(position));

  pipeline.request_collection();
  const Pipeline::Position later = pipeline.position();
  pipeline.give_up();
  EXPECT_TRUE(pipeline.is_settled(later));
}

TEST(Pipeline, SpansAreSettledOnlyWhenTheReceiverHasAnswered) {
  const SilentReceiver receiver;
  Pipeline pipeline(receiver.options(), {}, nullptr, nullptr);
  SpanData span;
  span.name = "test.span";
  span.context = {.trace_id_high = 1, .trace_id_low = 2, .span_id = 3};
  pipeline.add_spans({span});
  pipeline.request_collection();
  const Pipeline::Position position = pipeline.position();
  EXPECT_FALSE(pipeline.is_settled(position));
  pipeline.turn(true, milliseconds(10));
  EXPECT_FALSE(pipeline.is_settled(position));
  pipeline.give_up();
  EXPECT_TRUE(pipeline.is_settled(position));
  EXPECT_EQ(counts(pipeline, Signal::kTraces).failed, 1U);
}

}  // namespace
}  // namespace pharos::lens
