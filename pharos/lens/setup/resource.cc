#include "pharos/lens/setup/resource.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <initializer_list>
#include <system_error>
#include <type_traits>
#include <utility>

#include "pharos/base/text.h"
#include "pharos/lens/setup/run_id.h"
#include "pharos/lens/variables/scalar.h"

namespace pharos::lens {
namespace {

/// Unique keys in the order they came, each with where its value is from.
class AttributeTable {
 public:
  /// From now on values are from `origin`, by itself or by another's leave.
  void begin(const char* origin) { origin_ = origin; }

  void set(std::string_view key, StoredValue value) {
    const auto found = std::find_if(attributes_.begin(), attributes_.end(),
                                    [key](const auto& attribute) { return attribute.first == key; });
    if (found == attributes_.end()) {
      attributes_.emplace_back(key, std::move(value));
      origins_.push_back(origin_);
      return;
    }
    const auto index = static_cast<std::size_t>(found - attributes_.begin());
    if (origins_[index] != origin_ && found->second != value) replaced_.push_back({origins_[index], found->first});
    found->second = std::move(value);
    origins_[index] = origin_;
  }

  /// Nothing for no or an empty text.
  void set_text(std::string_view key, const std::optional<std::string>& value) {
    if (value && !value->empty()) set(key, *value);
  }

  /// Says which of `origin`'s values did not stay.
  void report(const char* origin, std::vector<std::string>& warnings) const {
    std::vector<std::string> keys;
    for (const auto& [from, key] : replaced_) {
      if (from == origin) keys.push_back(key);
    }
    if (keys.empty()) return;
    warnings.push_back(
        std::string(origin) + ": " + base::join(keys, ", ") +
        (keys.size() == 1 ? " is set by telemetry itself, which wins." : " are set by telemetry itself, which wins."));
  }

  StoredAttributes take() { return std::move(attributes_); }

 private:
  StoredAttributes attributes_;
  std::vector<const char*> origins_;
  std::vector<std::pair<const char*, std::string>> replaced_;
  const char* origin_ = "";
};

constexpr const char* kFromEnvironment = "OTEL_RESOURCE_ATTRIBUTES";
constexpr const char* kFromCaller = "Resource attributes of the program";

struct TextRule {
  const char* key;
  const char* variable;
};

void set_texts(AttributeTable& table, const Environment& environment, std::initializer_list<TextRule> rules) {
  for (const TextRule& rule : rules) table.set_text(rule.key, environment.get_nonempty(rule.variable));
}

void add_base(AttributeTable& table, const LensConfig& config, const ResourceInput& input) {
  table.set("service.name", config.service_name);
  table.set("service.version", std::string(pharos_version()));
  table.set("dl.rank", std::int64_t{input.rank});
  table.set("dl.world_size", std::int64_t{input.world_size});
  table.set("nemo.run.id", input.run_id);
  table.set("service.instance.id", input.run_id + "-rank" + std::to_string(input.rank));
  table.set_text("nemo.user.id", config.user);
  table.set_text("wandb.entity", config.wandb_entity);
  table.set_text("wandb.project", config.wandb_project);
  table.set_text("deployment.environment", config.deployment_environment);
}

void add_coordinates(AttributeTable& table, const RankCoordinates& coordinates) {
  table.set("dl.local_rank", std::int64_t{coordinates.local_rank});
  const std::pair<const char*, Place> dimensions[] = {{"tensor", coordinates.tensor},
                                                      {"pipeline", coordinates.pipeline},
                                                      {"data", coordinates.data},
                                                      {"context", coordinates.context},
                                                      {"expert", coordinates.expert}};
  for (const auto& [name, place] : dimensions) {
    const std::string key = std::string("dl.") + name + "_parallel.";
    table.set(key + "rank", std::int64_t{place.rank});
    table.set(key + "size", std::int64_t{place.size});
  }
}

/// NVRx counts in whole numbers; anything else it may say is passed on as text.
void set_count(AttributeTable& table, const char* key, const std::optional<std::string>& text) {
  const auto number = text ? parse_integer(*text) : std::nullopt;
  if (number) {
    table.set(key, *number);
  } else {
    table.set_text(key, text);
  }
}

void add_training(AttributeTable& table, const ResourceInput& input, const Environment& environment) {
  if (input.coordinates) add_coordinates(table, *input.coordinates);
  set_texts(table, environment,
            {{"slurm.cluster", "SLURM_CLUSTER_NAME"},
             {"slurm.sluid", "LENS_SLURM_SLUID"},
             {"slurm.array.job_id", "SLURM_ARRAY_JOB_ID"},
             {"slurm.array.task_id", "SLURM_ARRAY_TASK_ID"},
             {"slurm.array.sluid", "LENS_SLURM_ARRAY_SLUID"},
             {"slurm.restart_count", "SLURM_RESTART_COUNT"},
             {"slurm.torchelastic.restart_count", "TORCHELASTIC_RESTART_COUNT"},
             {"nvrx.membership", "NVRX_MEMBERSHIP"}});
  set_count(table, "nvrx.cycle", environment.get_nonempty("NVRX_CYCLE"));
  set_count(table, "nvrx.infra_rank", environment.get_nonempty("NVRX_INFRA_RANK"));
  table.set("nemo.lens.job_uuid", job_uuid(environment));
  table.set("nemo.lens.run_uuid", run_uuid(environment));
}

void add_host(AttributeTable& table, const HostFacts& host, const Environment& environment) {
  table.set("host.name", host.host_name);
  table.set("process.pid", host.pid);
  if (const auto mask = environment.get("CUDA_VISIBLE_DEVICES")) {
    table.set("host.gpu.count", std::int64_t{count_visible_devices(*mask)});
  } else if (host.num_gpu_devices > 0) {
    table.set("host.gpu.count", std::int64_t{host.num_gpu_devices});
  }
}

void add_slurm(AttributeTable& table, const Environment& environment, bool with_newer_names) {
  if (!environment.get_nonempty("SLURM_JOB_ID")) return;
  if (with_newer_names) {
    set_texts(table, environment,
              {{"slurm.nodelist", "SLURM_JOB_NODELIST"},
               {"slurm.nnodes", "SLURM_JOB_NUM_NODES"},
               {"slurm.partition", "SLURM_JOB_PARTITION"}});
  }
  set_texts(table, environment,
            {{"slurm.job.id", "SLURM_JOB_ID"},
             {"slurm.job.name", "SLURM_JOB_NAME"},
             {"slurm.nodelist", "SLURM_NODELIST"},
             {"slurm.nnodes", "SLURM_NNODES"},
             {"slurm.ntasks", "SLURM_NTASKS"},
             {"slurm.partition", "SLURM_PARTITION"},
             {"slurm.cluster.name", "SLURM_CLUSTER_NAME"}});
}

void add_kubernetes(AttributeTable& table, const HostFacts& host, const Environment& environment) {
  if (!environment.get_nonempty("KUBERNETES_SERVICE_HOST") && !host.has_kubernetes_secrets) return;
  set_texts(table, environment,
            {{"k8s.namespace.name", "K8S_NAMESPACE"},
             {"k8s.pod.name", "HOSTNAME"},
             {"k8s.pod.name", "K8S_POD_NAME"},
             {"k8s.pod.uid", "K8S_POD_UID"},
             {"k8s.node.name", "K8S_NODE_NAME"},
             {"k8s.container.name", "K8S_CONTAINER_NAME"},
             {"k8s.job.name", "K8S_JOB_NAME"}});
}

void make_texts_valid(StoredAttributes& attributes) {
  for (auto& [key, value] : attributes) {
    key = make_valid_utf8(key);
    if (auto* text = std::get_if<std::string>(&value)) *text = make_valid_utf8(*text);
    if (auto* texts = std::get_if<std::vector<std::string>>(&value)) {
      for (std::string& text : *texts) text = make_valid_utf8(text);
    }
  }
}

bool is_gpu_file(const std::string& name) {
  constexpr std::string_view kStem = "nvidia";
  return name.starts_with(kStem) && name.size() > kStem.size() &&
         std::all_of(name.begin() + kStem.size(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

HostFacts collect_host_facts() {
  HostFacts facts;
  char name[HOST_NAME_MAX + 1] = {};
  if (gethostname(name, HOST_NAME_MAX) == 0) facts.host_name = name;
  facts.pid = getpid();
  std::error_code error;
  std::filesystem::directory_iterator entry("/dev", error);
  while (!error && entry != std::filesystem::directory_iterator()) {
    if (is_gpu_file(entry->path().filename().string())) ++facts.num_gpu_devices;
    entry.increment(error);
  }
  facts.has_kubernetes_secrets = std::filesystem::is_directory("/var/run/secrets/kubernetes.io", error);
  return facts;
}

StoredAttributes build_resource(const LensConfig& config, const ResourceInput& input, const Environment& environment,
                                std::vector<std::string>& warnings) {
  AttributeTable table;
  table.begin("defaults");
  table.set("telemetry.sdk.language", std::string("cpp"));
  table.set("telemetry.sdk.name", std::string("pharos"));
  table.set("telemetry.sdk.version", std::string(pharos_version()));
  table.begin(kFromEnvironment);
  if (const auto text = environment.get_nonblank("OTEL_RESOURCE_ATTRIBUTES")) {
    for (auto& [key, value] : parse_resource_attributes(*text, warnings)) table.set(key, std::move(value));
  }
  table.begin("telemetry");
  add_base(table, config, input);
  if (input.has_training_keys) add_training(table, input, environment);
  table.begin(kFromCaller);
  for (const auto& [key, value] : input.extra) {
    if (!key.empty()) table.set(key, value);
  }
  table.begin("detectors");
  add_host(table, input.host, environment);
  add_slurm(table, environment, input.has_training_keys);
  add_kubernetes(table, input.host, environment);
  table.report(kFromEnvironment, warnings);
  table.report(kFromCaller, warnings);
  StoredAttributes attributes = table.take();
  make_texts_valid(attributes);
  return attributes;
}

std::string_view pharos_version() { return PHAROS_VERSION; }

int count_visible_devices(std::string_view mask) {
  int count = 0;
  while (true) {
    const std::size_t comma = mask.find(',');
    const std::string_view entry = trim_blanks(mask.substr(0, comma));
    const bool is_number = !entry.empty() && entry.find_first_not_of("0123456789") == std::string_view::npos;
    if (!is_number && !entry.starts_with("GPU-") && !entry.starts_with("MIG-")) return count;
    ++count;
    if (comma == std::string_view::npos) return count;
    mask.remove_prefix(comma + 1);
  }
}

StoredAttributes parse_resource_attributes(std::string_view text, std::vector<std::string>& warnings) {
  constexpr int kMostSaid = 5;
  int num_faulty = 0;
  AttributeTable table;
  bool has_more = true;
  while (has_more) {
    const std::size_t comma = text.find(',');
    const std::string_view item = trim_blanks(text.substr(0, comma));
    has_more = comma != std::string_view::npos;
    if (has_more) text.remove_prefix(comma + 1);
    if (item.empty()) continue;
    const std::size_t equals = item.find('=');
    const std::string key = make_valid_utf8(trim_blanks(item.substr(0, equals)));
    if (equals == std::string_view::npos || key.empty()) {
      if (++num_faulty > kMostSaid) continue;
      warnings.push_back(std::string(kFromEnvironment) + ": '" + shown(item) + "' is not key=value and is skipped.");
      continue;
    }
    table.set(key, decode_percent(trim_blanks(item.substr(equals + 1))));
  }
  if (num_faulty > kMostSaid) {
    warnings.push_back(std::string(kFromEnvironment) + ": " + std::to_string(num_faulty - kMostSaid) +
                       " further entries are skipped, too.");
  }
  return table.take();
}

}  // namespace pharos::lens
