// Runs the operations of a scenario through lens, for tests/lens_conformance_test.py.
//   lens_replay SCENARIOS.json NAME [--prefix NEMO_LENS]...
// The environment configures telemetry (variables of the prefixes, OTEL_*); rank, world size and resource come from the
// scenario. Operations: open, set, raw, close, fail, call, link, end, inject, extract, detach, metric, log, groups;
// they mean what the same calls of nemo-lens do. The last line of standard output is {"is_exporting": …, "observed":
// […]}. Exit status: 0, or 2 for wrong arguments, an unknown operation or telemetry that cannot be set up.
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "pharos/lens/context/propagation.h"
#include "pharos/lens/life/interrupt.h"
#include "pharos/lens/logs/log_queue.h"
#include "pharos/lens/logs/severity.h"
#include "pharos/lens/metrics/training_metrics.h"
#include "pharos/lens/setup/settings.h"
#include "pharos/lens/setup/setup_telemetry.h"
#include "pharos/lens/span.h"

// What scenarios throw. Outside of any namespace: the names are seen in exception.type.
struct ValueError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct RuntimeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

namespace pharos::lens {
namespace {

using Json = nlohmann::ordered_json;

template <typename Element, typename Matches>
std::optional<StoredValue> list_of(const Json& list, Matches matches) {
  std::vector<Element> elements;
  for (const Json& element : list) {
    if (!matches(element)) return std::nullopt;
    elements.push_back(element.get<Element>());
  }
  return StoredValue(std::move(elements));
}

/// None for what is no attribute value: null, maps, lists of lists, lists of several types (lens.md section 5.3).
std::optional<StoredValue> to_stored(const Json& value) {
  if (value.is_boolean()) return StoredValue(value.get<bool>());
  if (value.is_number_integer()) return StoredValue(value.get<std::int64_t>());
  if (value.is_number()) return StoredValue(value.get<double>());
  if (value.is_string()) return StoredValue(value.get<std::string>());
  if (!value.is_array()) return std::nullopt;
  if (auto list = list_of<std::string>(value, [](const Json& element) { return element.is_string(); })) return list;
  if (auto list = list_of<bool>(value, [](const Json& element) { return element.is_boolean(); })) return list;
  if (auto list = list_of<std::int64_t>(value, [](const Json& element) { return element.is_number_integer(); })) {
    return list;
  }
  return list_of<double>(value, [](const Json& element) { return element.is_number_float(); });
}

StoredAttributes to_stored_attributes(const Json& attributes) {
  StoredAttributes stored;
  for (const auto& [key, value] : attributes.items()) {
    if (auto found = to_stored(value)) stored.emplace_back(key, *std::move(found));
  }
  return stored;
}

/// Attributes of an operation, and what they refer to.
class OwnedAttributes {
 public:
  explicit OwnedAttributes(const Json& attributes) : stored_(to_stored_attributes(attributes)) {
    for (const auto& [key, value] : stored_) {
      views_.emplace_back(key, std::visit([](const auto& held) { return AttributeValue(held); }, value));
    }
  }
  OwnedAttributes(const OwnedAttributes&) = delete;

  std::span<const Attribute> views() const { return views_; }

 private:
  StoredAttributes stored_;
  std::vector<Attribute> views_;
};

OwnedAttributes attributes_of(const Json& operation) {
  return OwnedAttributes(operation.value("attrs", Json::object()));
}

[[noreturn]] void throw_error(const std::string& type, const std::string& message) {
  if (type == "KeyboardInterrupt") throw Interrupt();
  if (type == "ValueError") throw ValueError(message);
  if (type == "RuntimeError") throw RuntimeError(message);
  throw std::invalid_argument("unknown type of error: " + type);
}

std::optional<double> number_of(const Json& values, const std::string& key) {
  if (!values.contains(key) || values[key].is_null()) return std::nullopt;
  return values[key].get<double>();
}

class Replay {
 public:
  explicit Replay(Telemetry* telemetry) : telemetry_(telemetry) {}

  void run(const Json& operation) {
    static const std::map<std::string, void (Replay::*)(const Json&)> kOperations = {
        {"open", &Replay::open},       {"set", &Replay::set},           {"raw", &Replay::set_raw},
        {"close", &Replay::end},       {"fail", &Replay::fail},         {"call", &Replay::call},
        {"link", &Replay::link},       {"end", &Replay::end},           {"inject", &Replay::inject},
        {"extract", &Replay::extract}, {"detach", &Replay::detach},     {"metric", &Replay::metric},
        {"log", &Replay::log},         {"groups", &Replay::set_groups},
    };
    const auto found = kOperations.find(operation.at("op").get<std::string>());
    if (found == kOperations.end()) throw std::invalid_argument("unknown operation: " + operation.dump());
    (this->*found->second)(operation);
  }

  const Json& observed() const { return observed_; }

 private:
  ManagedSpan& span(const Json& operation) { return spans_.at(operation.at("id").get<std::string>()); }

  /// As managed_span() and span_cm() do with the tracer of the handle: scope nemo.lens.
  void open(const Json& operation) {
    const bool is_managed = operation.at("kind") == "managed_span";
    std::optional<Group> group = Group::kJob;
    if (is_managed) group = find_group(operation.at("group").get<std::string>());
    StartOptions options;
    options.is_ungated = !is_managed;
    options.error_style = is_managed ? ErrorStyle::kMessage : ErrorStyle::kTypeAndMessage;
    const OwnedAttributes attributes = attributes_of(operation);
    const auto id = operation.at("id").get<std::string>();
    adds_event_[id] = operation.value("record_exception", true);
    ManagedSpan span;
    if (group) span = start_span(*group, operation.at("name").get<std::string>(), options, attributes.views());
    observed_.push_back({{"op", "open"}, {"id", id}, {"yields", static_cast<bool>(span)}});
    spans_[id] = std::move(span);
  }

  void set(const Json& operation) {
    const OwnedAttributes attributes = attributes_of(operation);
    safe_set_span_attributes(span(operation), attributes.views());
  }

  void set_raw(const Json& operation) {
    Json attribute = Json::object();
    attribute[operation.at("key").get<std::string>()] = operation.at("value");
    const OwnedAttributes attributes(attribute);
    for (const auto& [key, value] : attributes.views()) span(operation).set_raw(key, value);
  }

  void end(const Json& operation) { span(operation).end(); }

  void fail(const Json& operation) {
    const auto type = operation.at("type").get<std::string>();
    const auto message = operation.at("message").get<std::string>();
    const bool adds_event = adds_event_.at(operation.at("id").get<std::string>());
    try {
      with_span(
          std::move(span(operation)), [&] { throw_error(type, message); }, adds_event);
    } catch (const std::invalid_argument&) {
      throw;
    } catch (const std::exception&) {  // has left the block: what was asked for
    }
  }

  void call(const Json& operation) {
    const std::optional<Group> group = find_group(operation.at("group").get<std::string>());
    const auto body = [&] {
      if (operation.contains("fail")) throw ValueError(operation["fail"].get<std::string>());
    };
    try {
      traced(group.value(), operation.at("name").get<std::string>(), body);
    } catch (const ValueError&) {  // has left the function: what was asked for
    }
  }

  void link(const Json& operation) {
    const OwnedAttributes attributes = attributes_of(operation);
    ManagedSpan span = create_linked_span(operation.at("name").get<std::string>(),
                                          operation.value("carrier", Json::object()).get<Carrier>());
    safe_set_span_attributes(span, attributes.views());
    spans_[operation.at("id").get<std::string>()] = std::move(span);
  }

  void inject(const Json& /*operation*/) {
    Carrier carrier;
    inject_context(carrier);
    observed_.push_back({{"op", "inject"}, {"carrier", carrier}});
  }

  void extract(const Json& operation) {
    attached_.push_back(std::make_unique<AttachedContext>(extract_context(operation.at("carrier").get<Carrier>())));
  }

  void detach(const Json& /*operation*/) { attached_.pop_back(); }

  void metric(const Json& operation) {
    if (telemetry_ == nullptr || telemetry_->meter() == nullptr) return;
    const Json& values = operation.at("values");
    TrainingSample sample{.step_duration_ms = number_of(values, "step_duration_ms"),
                          .loss = number_of(values, "loss"),
                          .throughput_tflops = number_of(values, "throughput_tflops"),
                          .grad_norm = number_of(values, "grad_norm"),
                          .learning_rate = number_of(values, "learning_rate"),
                          .tokens_per_sec = number_of(values, "tokens_per_sec"),
                          .memory_allocated_gb = number_of(values, "memory_allocated_gb")};
    if (const auto skipped = number_of(values, "skipped_iters")) {
      sample.skipped_iters = static_cast<std::int64_t>(*skipped);
    }
    record_training_metrics(*telemetry_->meter(), sample);
  }

  void log(const Json& operation) {
    if (telemetry_ == nullptr || telemetry_->logs() == nullptr) return;
    const int level = operation.at("level").get<int>();
    const std::string text = text_of_python_level(level);
    const auto body = operation.at("message").get<std::string>();
    const auto scope = operation.value("logger", std::string("pharos"));
    const OwnedAttributes attributes = attributes_of(operation);
    telemetry_->logs()->emit({.severity = severity_of_python_level(level),
                              .severity_text = text,
                              .body = body,
                              .scope = scope,
                              .attributes = attributes.views()});
  }

  void set_groups(const Json& operation) {
    const auto names = operation.at("list").get<std::vector<std::string>>();
    for (const std::string& unknown : set_enabled_span_groups(names)) {
      throw std::invalid_argument("unknown group: " + unknown);
    }
  }

  Telemetry* telemetry_;
  std::map<std::string, ManagedSpan> spans_;
  std::map<std::string, bool> adds_event_;  ///< of each span's failures
  std::vector<std::unique_ptr<AttachedContext>> attached_;
  Json observed_ = Json::array();
};

int run(const std::string& file, const std::string& name, const std::vector<std::string>& prefixes) {
  std::ifstream stream(file);
  const Json scenario = Json::parse(stream).at(name);
  const ProcessEnvironment environment;
  LoadOptions options;
  options.prefixes = prefixes;
  options.default_service_name = "nemo";
  const LensSettings settings = load_settings(environment, options);
  SetupInput input;
  input.rank = scenario.value("rank", 0);
  input.world_size = scenario.value("world_size", 1);
  input.resource_attributes = to_stored_attributes(scenario.value("resource", Json::object()));
  input.has_training_keys = false;
  const SetupResult result = setup_telemetry(settings, input, environment);
  for (const std::string& warning : result.warnings) std::fprintf(stderr, "%s\n", warning.c_str());

  Replay replay(result.telemetry);
  for (const Json& operation : scenario.at("ops")) replay.run(operation);
  if (result.telemetry != nullptr) result.telemetry->shutdown();
  const Json line = {{"is_exporting", result.is_exporting}, {"observed", replay.observed()}};
  std::printf("%s\n", line.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace pharos::lens

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  std::vector<std::string> prefixes;
  bool is_valid = arguments.size() >= 2 && arguments.size() % 2 == 0;
  for (std::size_t i = 2; is_valid && i < arguments.size(); i += 2) {
    is_valid = arguments[i] == "--prefix";
    prefixes.push_back(arguments[i + 1]);
  }
  if (!is_valid) {
    std::fprintf(stderr, "usage: lens_replay SCENARIOS.json NAME [--prefix PREFIX]...\n");
    return 2;
  }
  if (prefixes.empty()) prefixes.emplace_back("NEMO_LENS");
  try {
    return pharos::lens::run(arguments[0], arguments[1], prefixes);
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "lens_replay: %s\n", exception.what());
    return 2;
  }
}
