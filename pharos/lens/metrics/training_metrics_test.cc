// The cases of megatron-telemetry.md section 8, items 33 to 48, and what Pharos adds.
#include "pharos/lens/metrics/training_metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>

#include "pharos/base/error.h"
#include "pharos/lens/metrics/network_metrics.h"
#include "pharos/lens/metrics/test_support.h"

namespace pharos::lens {
namespace {

const std::string kPrefix = "megatron.training.";

struct EightCase {
  const char* name;
  InstrumentKind kind;
  const char* unit;
  TrainingSample sample;  ///< only this value
  double value;
};

std::vector<EightCase> the_eight() {
  return {
      {"step_duration_ms", InstrumentKind::kHistogram, "ms", {.step_duration_ms = 412.5}, 412.5},
      {"loss", InstrumentKind::kGauge, "", {.loss = 2.25}, 2.25},
      {"throughput_tflops", InstrumentKind::kGauge, "", {.throughput_tflops = 123.0}, 123.0},
      {"grad_norm", InstrumentKind::kGauge, "", {.grad_norm = 0.75}, 0.75},
      {"skipped_iters", InstrumentKind::kCounter, "", {.skipped_iters = 3}, 3},
      {"learning_rate", InstrumentKind::kGauge, "", {.learning_rate = 1e-4}, 1e-4},
      {"tokens_per_sec", InstrumentKind::kGauge, "", {.tokens_per_sec = 65536.0}, 65536.0},
      {"memory_allocated_gb", InstrumentKind::kGauge, "", {.memory_allocated_gb = 3.5}, 3.5},
  };
}

TrainingSample full_sample() {
  return {.step_duration_ms = 412.5,
          .loss = 2.25,
          .throughput_tflops = 123.0,
          .grad_norm = 0.75,
          .skipped_iters = 3,
          .learning_rate = 1e-4,
          .tokens_per_sec = 65536.0,
          .memory_allocated_gb = 3.5};
}

double value_of(const MemoryMeter& metrics, const EightCase& c) {
  const std::string name = kPrefix + c.name;
  if (c.kind == InstrumentKind::kHistogram) return metrics.histogram(name).sum;
  return c.kind == InstrumentKind::kCounter ? metrics.sum(name) : metrics.gauge(name);
}

TEST(TrainingMetrics, FirstRecordCreatesExactlyTheEightWithTheirKindsAndUnits) {
  MemoryMeter metrics;
  record_training_metrics(metrics.meter(), {.loss = 1.0});
  const std::vector<const internal::Instrument*> instruments = metrics.meter().instruments();
  const std::vector<EightCase> eight = the_eight();
  ASSERT_EQ(instruments.size(), eight.size());
  for (std::size_t i = 0; i < eight.size(); ++i) {
    EXPECT_EQ(instruments[i]->name(), kPrefix + eight[i].name);
    EXPECT_EQ(instruments[i]->kind(), eight[i].kind) << eight[i].name;
    EXPECT_EQ(instruments[i]->options().unit, eight[i].unit) << eight[i].name;
  }
  EXPECT_EQ(metrics.meter().scope(), "nemo.lens");
}

TEST(TrainingMetrics, InstrumentsAreCreatedOncePerMeter) {
  MemoryMeter first;
  MemoryMeter second;
  for (int i = 0; i < 3; ++i) record_training_metrics(first.meter(), full_sample());
  EXPECT_EQ(first.instrument_names().size(), 8u);
  record_training_metrics(second.meter(), {.loss = 9.0});
  first.collect();
  second.collect();
  EXPECT_EQ(first.gauge("megatron.training.loss"), 2.25);
  EXPECT_EQ(second.gauge("megatron.training.loss"), 9.0);
  EXPECT_EQ(first.sum("megatron.training.skipped_iters"), 9);
  EXPECT_FALSE(second.has("megatron.training.skipped_iters"));
}

struct CountedCompanion {
  explicit CountedCompanion(Meter&) { ++alive; }
  ~CountedCompanion() { --alive; }
  static inline int alive = 0;
};

TEST(TrainingMetrics, WhatBelongsToAMeterIsReleasedWithIt) {
  {
    MemoryMeter metrics;
    EXPECT_EQ(metrics.meter().companion<CountedCompanion>(), metrics.meter().companion<CountedCompanion>());
    EXPECT_EQ(CountedCompanion::alive, 1);
  }
  EXPECT_EQ(CountedCompanion::alive, 0);
}

TEST(TrainingMetrics, EachValueReachesItsOwnInstrumentWithoutAttributes) {
  MemoryMeter metrics;
  record_training_metrics(metrics.meter(), full_sample());
  const auto& collected = metrics.collect();
  EXPECT_EQ(collected.size(), 8u);
  for (const EightCase& c : the_eight()) {
    EXPECT_EQ(value_of(metrics, c), c.value) << c.name;
    const auto num_attributes = [](const auto& data) { return data.points.front().attributes.size(); };
    EXPECT_EQ(std::visit(num_attributes, collected.at(kPrefix + c.name).data), 0u) << c.name;
  }
}

TEST(TrainingMetrics, EachValueAloneRecordsOnlyItsOwnMetric) {
  for (const EightCase& c : the_eight()) {
    MemoryMeter metrics;
    record_training_metrics(metrics.meter(), c.sample);
    EXPECT_EQ(metrics.collect().size(), 1u) << c.name;
    EXPECT_EQ(value_of(metrics, c), c.value) << c.name;
  }
}

TEST(TrainingMetrics, NoValuesCreateInstrumentsAndRecordNothing) {
  MemoryMeter metrics;
  record_training_metrics(metrics.meter(), {});
  EXPECT_EQ(metrics.instrument_names().size(), 8u);
  EXPECT_TRUE(metrics.collect().empty());
}

TEST(TrainingMetrics, RepeatedCallsFollowEachOther) {
  MemoryMeter metrics;
  for (const double value : {30.0, 20000.0, 412.5}) {
    record_training_metrics(metrics.meter(), {.step_duration_ms = value, .loss = value});
  }
  metrics.collect();
  EXPECT_EQ(metrics.gauge("megatron.training.loss"), 412.5);
  // What nemo-lens sent for these three.
  const HistogramPoint point = metrics.histogram("megatron.training.step_duration_ms");
  EXPECT_EQ(point.count, 3u);
  EXPECT_EQ(point.sum, 20442.5);
  EXPECT_EQ(point.min, 30.0);
  EXPECT_EQ(point.max, 20000.0);
  EXPECT_EQ(point.bucket_counts, (std::vector<std::uint64_t>{0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(point.bounds,
            (std::vector<double>{0, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000}));
}

TEST(TrainingMetrics, TheCounterTakesPositiveValuesOnly) {
  MemoryMeter metrics;
  for (const std::int64_t skipped : {0, -2}) record_training_metrics(metrics.meter(), {.skipped_iters = skipped});
  metrics.collect();
  EXPECT_FALSE(metrics.has("megatron.training.skipped_iters"));
  EXPECT_EQ(metrics.provider().num_rejected(), 0u);
  for (const std::int64_t skipped : {1, 5}) record_training_metrics(metrics.meter(), {.skipped_iters = skipped});
  metrics.collect();
  EXPECT_EQ(metrics.sum("megatron.training.skipped_iters"), 6);
}

TEST(TrainingMetrics, ZeroIsAValueOfAGauge) {
  MemoryMeter metrics;
  record_training_metrics(metrics.meter(), {.loss = 0.0, .grad_norm = 0.0, .learning_rate = 0.0});
  metrics.collect();
  for (const char* name : {"loss", "grad_norm", "learning_rate"}) EXPECT_EQ(metrics.gauge(kPrefix + name), 0.0) << name;
}

TEST(TrainingMetrics, AFailureToCreateIsToldAndNotKept) {
  MemoryMeter metrics;
  metrics.meter().create_counter<double>("megatron.training.loss");  // in the way
  testing::internal::CaptureStderr();
  record_training_metrics(metrics.meter(), full_sample());
  record_training_metrics(metrics.meter(), full_sample());
  const std::string said = testing::internal::GetCapturedStderr();
  const std::string warning = "Failed to create training metric instruments";
  EXPECT_NE(said.find(warning), std::string::npos) << said;
  EXPECT_EQ(said.find(warning), said.rfind(warning)) << "told once";
  EXPECT_TRUE(metrics.collect().empty());
}

struct FailsOnce {
  static inline bool fails = true;
  explicit FailsOnce(Meter&) {
    if (fails) throw std::runtime_error("not yet");
  }
};

TEST(TrainingMetrics, AMeterThatFailedIsTriedAgain) {
  MemoryMeter metrics;
  EXPECT_THROW(metrics.meter().companion<FailsOnce>(), std::runtime_error);
  FailsOnce::fails = false;
  EXPECT_NE(metrics.meter().companion<FailsOnce>(), nullptr);
}

TEST(TrainingMetrics, OwnMetricsAreRecordedBesideTheEight) {
  MemoryMeter metrics;
  const double waits[] = {0.05, 0.3, 70000};
  record_training_metrics(metrics.meter(), {.loss_scale = 65536.0,
                                            .nan_iterations = 2,
                                            .consumed_tokens = 4096,
                                            .validation_loss = 3.5,
                                            .checkpoint_seconds = 0.02,
                                            .checkpoint_bytes = 1e9,
                                            .data_wait_ms = waits});
  metrics.collect();
  EXPECT_EQ(metrics.gauge("megatron.train.loss_scale"), 65536);
  EXPECT_EQ(metrics.sum("megatron.train.nan_iterations"), 2);
  EXPECT_EQ(metrics.sum("megatron.train.consumed_tokens"), 4096);
  EXPECT_EQ(metrics.gauge("megatron.validation.loss"), 3.5);
  EXPECT_EQ(metrics.gauge("megatron.checkpoint.save_bytes"), 1e9);
  const HistogramPoint save = metrics.histogram("megatron.checkpoint.save_seconds");
  EXPECT_EQ(save.bounds.front(), 0.01);
  EXPECT_EQ(save.bounds.back(), 600);
  EXPECT_EQ(save.bucket_counts[1], 1u);
  const HistogramPoint wait = metrics.histogram("megatron.train.data_wait_ms");
  EXPECT_EQ(wait.count, 3u);
  EXPECT_EQ(wait.bucket_counts.front(), 1u);
  EXPECT_EQ(wait.bucket_counts.back(), 1u);
  EXPECT_EQ(metrics.collect().count("megatron.training.loss"), 0u);
}

TEST(TrainingMetrics, ThoseOfExpertsAppearWithTheModelsThatHaveSome) {
  MemoryMeter metrics;
  record_training_metrics(metrics.meter(), {.loss = 1.0});
  EXPECT_EQ(metrics.collect().count("megatron.moe.dead_experts"), 0u);
  record_training_metrics(
      metrics.meter(),
      {.expert_load_max_over_mean = 1.5,
       .expert_load_entropy = 0.9,
       .dead_experts = 3.0,
       .dropped_fraction = 0.0,
       .auxiliary_losses = {
           {"seq_load_balancing_loss", 1.25}, {"z_loss", 4.0}, {"mtp_1 loss", 2.0}, {"mtp_2 loss", 3.0}}});
  metrics.collect();
  EXPECT_EQ(metrics.gauge("megatron.moe.load_max_over_mean"), 1.5);
  EXPECT_EQ(metrics.gauge("megatron.moe.load_entropy"), 0.9);
  EXPECT_EQ(metrics.gauge("megatron.moe.dead_experts"), 3);
  EXPECT_EQ(metrics.gauge("megatron.moe.dropped_fraction"), 0);
  EXPECT_EQ(metrics.gauge("megatron.moe.seq_load_balancing_loss"), 1.25);
  EXPECT_EQ(metrics.gauge("megatron.moe.z_loss"), 4);
  EXPECT_EQ(metrics.gauge("megatron.train.mtp_loss"), 2.5);
  EXPECT_EQ(metrics.collect().count("megatron.moe.load_balancing_loss"), 0u);
}

TEST(TrainingMetrics, ProgressIsExportedInEveryCycleFromTheFirstStepOn) {
  MemoryMeter metrics;
  EXPECT_TRUE(metrics.collect().empty());
  record_progress(metrics.meter(), 1'700'000'000'500'000'000);
  for (int cycle = 0; cycle < 2; ++cycle) {
    metrics.collect();
    EXPECT_DOUBLE_EQ(metrics.gauge("megatron.train.last_progress_seconds"), 1'700'000'000.5);
  }
  record_progress(metrics.meter(), 1'700'000'002'000'000'000);
  metrics.collect();
  EXPECT_DOUBLE_EQ(metrics.gauge("megatron.train.last_progress_seconds"), 1'700'000'002);
}

TEST(TrainingMetrics, TelemetryTellsItsOwnLosses) {
  MemoryMeter metrics;
  PipelineCounts counts{.spans = {1, 2, 3}, .points = {4, 5, 6}, .logs = {7, 8, 9}, .queue_depth = 10};
  observe_telemetry(metrics.meter(), [&counts] { return counts; });
  metrics.collect();
  int expected = 0;
  for (const char* signal : {"spans", "points", "logs"}) {
    for (const char* fate : {"_exported", "_dropped", "_failed"}) {
      EXPECT_EQ(metrics.sum(std::string("megatron.telemetry.") + signal + fate), ++expected) << signal << fate;
    }
  }
  EXPECT_EQ(metrics.gauge("megatron.telemetry.queue_depth"), 10);
  counts.spans.dropped = 20;
  metrics.collect();
  EXPECT_EQ(metrics.sum("megatron.telemetry.spans_dropped"), 20);
  stop_observing_telemetry(metrics.meter());
  EXPECT_TRUE(metrics.collect().empty());
}

TEST(InferenceMetrics, CarryTheBaseAttributesAndTheTokenType) {
  MemoryMeter metrics;
  record_inference_metrics(metrics.meter(), {.request_duration_s = 0.3, .output_tokens = 12, .model = "gpt"});
  record_inference_metrics(metrics.meter(), {.input_tokens = 5, .operation_name = "chat", .provider_name = "pharos"});
  metrics.collect();
  const HistogramPoint duration = metrics.histogram("gen_ai.server.request.duration");
  EXPECT_EQ(duration.attributes, (StoredAttributes{{"gen_ai.operation.name", std::string("text_completion")},
                                                   {"gen_ai.provider.name", std::string("nemo")},
                                                   {"gen_ai.request.model", std::string("gpt")}}));
  EXPECT_EQ(duration.sum, 0.3);
  std::set<StoredAttributes> sets;
  for (const HistogramPoint& point : metrics.points<HistogramData>("gen_ai.client.token.usage")) {
    sets.insert(point.attributes);
  }
  EXPECT_EQ(sets, (std::set<StoredAttributes>{{{"gen_ai.operation.name", std::string("text_completion")},
                                               {"gen_ai.provider.name", std::string("nemo")},
                                               {"gen_ai.request.model", std::string("gpt")},
                                               {"gen_ai.token.type", std::string("output")}},
                                              {{"gen_ai.operation.name", std::string("chat")},
                                               {"gen_ai.provider.name", std::string("pharos")},
                                               {"gen_ai.token.type", std::string("input")}}}));
  const auto& collected = metrics.collect();
  EXPECT_EQ(collected.at("gen_ai.server.request.duration").unit, "s");
  EXPECT_EQ(collected.at("gen_ai.client.token.usage").unit, "{token}");
}

TEST(KnownMetrics, HaveUniqueNamesThatPrometheusKeepsAndOnlyTheEightAreTraining) {
  const std::regex kept("^(dl|megatron|gen_ai|rl|gym|system|node|otelcol)_.*");
  std::set<std::string> names;
  int num_training = 0;
  for (const MetricDescription& metric : known_metrics()) {
    const std::string name(metric.name);
    EXPECT_TRUE(names.insert(name).second) << name;
    std::string translated = name;
    std::replace(translated.begin(), translated.end(), '.', '_');
    EXPECT_TRUE(std::regex_match(translated, kept)) << name;
    EXPECT_FALSE(metric.description.empty()) << name;
    EXPECT_TRUE(std::is_sorted(metric.bounds.begin(), metric.bounds.end())) << name;
    num_training += name.starts_with(kPrefix);
  }
  EXPECT_EQ(num_training, 8);
  EXPECT_THROW(find_metric("megatron.training.step"), base::InternalError);
}

TEST(KnownMetrics, EveryInstrumentIsInTheTableAndEveryEntryIsAnInstrument) {
  MemoryMeter metrics;
  record_training_metrics(metrics.meter(), {.loss = 1.0, .validation_loss = 1.0, .expert_load_max_over_mean = 1.0});
  record_progress(metrics.meter(), 1);
  observe_telemetry(metrics.meter(), [] { return PipelineCounts(); });
  record_inference_metrics(metrics.meter(), {});
  record_network_metrics(metrics.meter(), {}, 1);
  const std::vector<const internal::Instrument*> instruments = metrics.meter().instruments();
  EXPECT_EQ(instruments.size(), known_metrics().size());
  for (const internal::Instrument* instrument : instruments) {
    const MetricDescription& metric = find_metric(instrument->name());
    EXPECT_EQ(instrument->kind(), metric.kind) << metric.name;
    EXPECT_EQ(instrument->is_integer(), metric.is_integer) << metric.name;
    EXPECT_EQ(instrument->options().unit, metric.unit) << metric.name;
    EXPECT_EQ(instrument->options().description, metric.description) << metric.name;
  }
}

}  // namespace
}  // namespace pharos::lens
