#include "pharos/lens/variables/variables.h"

namespace pharos::lens {
namespace {

constexpr VariableDescription kVariables[] = {
    {"ENABLED", true, "0", "Turns telemetry on.", ""},
    {"EXPORT_STRATEGY", true, "single_rank",
     "Which ranks export: single_rank, all_ranks, sampled, first_rank_per_node, or a registered one.", ""},
    {"RANK_STRATEGY", true, "", "Old name of EXPORT_STRATEGY, read with a warning.",
     "Megatron's guide names it; nemo-lens ignores it."},
    {"EXPORT_RANK", true, "-1", "Rank that exports with single_rank; negative: the last one.",
     "A rank that does not exist is warned of."},
    {"EXPORT_SAMPLE_RATE", true, "1.0", "Fraction of ranks that export with sampled, and that the rank sampler keeps.",
     ""},
    {"SAMPLE_AT_LEAST_ONE", true, "0", "With sampled: the last rank exports where the rate picks none.",
     "Own addition."},
    {"SAMPLER_ENABLED", true, "0", "Keeps the spans only of the fraction EXPORT_SAMPLE_RATE of ranks.", ""},
    {"SAMPLING_STRATEGY", true, "", "Old name of SAMPLER_ENABLED: rank_aware means 1. Read with a warning.",
     "Megatron's guide names it; nemo-lens ignores it."},
    {"TRACES_ENABLED", true, "1", "Sends spans.", ""},
    {"METRICS_ENABLED", true, "1", "Sends metrics.", ""},
    {"LOGS_ENABLED", true, "0", "Sends log records.", ""},
    {"SPAN_GROUPS", true, "default", "Which spans are recorded: names of groups and presets, separated by commas.", ""},
    {"EXPORTER", true, "otlp",
     "otlp; console: one JSON object a line on standard output; or our own file: the same lines in the run's folder "
     "trace/.",
     ""},
    {"RUN_ID", true, "", "Identifies the run; see the rules of the run id.", ""},
    {"USER_ID", true, "", "Resource attribute nemo.user.id.", ""},

    {"OTEL_SERVICE_NAME", false, "pharos", "Resource attribute service.name.", "nemo-lens's default is nemo."},
    {"WANDB_ENTITY", false, "", "Resource attribute wandb.entity.", "Blanks around it are removed."},
    {"WANDB_PROJECT", false, "", "Resource attribute wandb.project.", "Blanks around it are removed."},
    {"DEPLOYMENT_ENV", false, "", "Resource attribute deployment.environment.", ""},
    {"ENVIRONMENT", false, "", "The same, read where DEPLOYMENT_ENV is not set, not even to nothing.", ""},
    {"MEGATRON_LOGGING_LEVEL", false, "", "Lowest level of messages: 10, 20, 30, 40, 50 as in Python, or a name.", ""},

    {"OTEL_SDK_DISABLED", false, "false", "true: nothing is recorded or sent.", ""},
    {"OTEL_TRACES_EXPORTER", false, "", "Has no effect: P_EXPORTER and P_TRACES_ENABLED choose.",
     "Warned of where it asks for something else. nemo-lens ignores it."},
    {"OTEL_METRICS_EXPORTER", false, "", "Has no effect: P_EXPORTER and P_METRICS_ENABLED choose.",
     "Warned of where it asks for something else. nemo-lens ignores it."},
    {"OTEL_LOGS_EXPORTER", false, "", "Has no effect: P_EXPORTER and P_LOGS_ENABLED choose.",
     "Warned of where it asks for something else. nemo-lens ignores it."},
    {"OTEL_RESOURCE_ATTRIBUTES", false, "",
     "Further resource attributes: key=value, separated by commas, percent-coded.",
     "What telemetry sets itself wins, as in nemo-lens; that is warned of."},
    {"OTEL_TRACES_SAMPLER", false, "parentbased_always_on",
     "always_on, always_off, traceidratio, or parentbased_ and one of these.", ""},
    {"OTEL_TRACES_SAMPLER_ARG", false, "1.0", "Ratio of traces for the two of traceidratio.", ""},
    {"OTEL_BSP_SCHEDULE_DELAY", false, "5000", "Longest wait of a span before it is sent, ms.", ""},
    {"OTEL_BSP_MAX_QUEUE_SIZE", false, "65536", "Spans that may wait.", "The SDK's default is 2048."},
    {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", false, "512", "Spans in one request.", ""},
    {"OTEL_BSP_EXPORT_TIMEOUT", false, "30000", "Longest time of sending one batch, ms.", ""},
    {"OTEL_BLRP_SCHEDULE_DELAY", false, "1000", "Longest wait of a log record before it is sent, ms.", ""},
    {"OTEL_BLRP_MAX_QUEUE_SIZE", false, "2048", "Log records that may wait.", ""},
    {"OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", false, "512", "Log records in one request.", ""},
    {"OTEL_BLRP_EXPORT_TIMEOUT", false, "30000", "Longest time of sending one batch, ms.", ""},
    {"OTEL_METRIC_EXPORT_INTERVAL", false, "10000", "Time between two collections of metrics, ms.",
     "The SDK's default is 60000. Empty counts as not set, in nemo-lens it is an error."},
    {"OTEL_METRIC_EXPORT_TIMEOUT", false, "30000", "Longest time of one collection and export, ms.", ""},
    {"OTEL_METRICS_EXEMPLAR_FILTER", false, "trace_based", "trace_based, always_on or always_off.", ""},
    {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", false, "cumulative", "cumulative, delta or lowmemory.", ""},
    {"OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", false, "explicit_bucket_histogram",
     "explicit_bucket_histogram or base2_exponential_bucket_histogram.", ""},
    {"OTEL_ATTRIBUTE_COUNT_LIMIT", false, "128", "Attributes of a span or a log record, where not said below.", ""},
    {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", false, "128", "Attributes of a span.", ""},
    {"OTEL_SPAN_EVENT_COUNT_LIMIT", false, "128", "Events of a span.", ""},
    {"OTEL_SPAN_LINK_COUNT_LIMIT", false, "128", "Links of a span.", ""},
    {"OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", false, "128", "Attributes of an event.", ""},
    {"OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", false, "128", "Attributes of a link.", ""},
    {"OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT", false, "128", "Attributes of a log record.", ""},
    {"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", false, "", "Characters of a text attribute, where not said below.", ""},
    {"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", false, "", "Characters of a text attribute of a span.", ""},
    {"OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT", false, "", "Characters of a text attribute of a log record.", ""},
    {"OTEL_PROPAGATORS", false, "tracecontext,baggage", "What is passed on between processes: these, or none.",
     "Exporting ranks pass on both whatever it says."},

    {"LOCAL_RANK", false, "0", "Rank within the node, for first_rank_per_node.",
     "What is no number is warned of; nemo-lens fails."},
    {"SLURM_LOCALID", false, "", "The same under srun.", "nemo-lens does not read it."},
    {"OMPI_COMM_WORLD_LOCAL_RANK", false, "", "The same under Open MPI.", "nemo-lens does not read it."},
    {"MPI_LOCALRANKID", false, "", "The same under Intel MPI.", "nemo-lens does not read it."},
    {"PMI_LOCAL_RANK", false, "", "The same under MPICH and Cray MPICH.", "nemo-lens does not read it."},

    {"SLURM_JOB_ID", false, "", "Run id where none is given, and slurm.job.id; turns the Slurm attributes on.", ""},
    {"TORCHELASTIC_RUN_ID", false, "", "Run id where none is given and there is no Slurm job; none means nothing.",
     "nemo-lens makes up one for each process instead."},
    {"PMIX_NAMESPACE", false, "", "The same under PMIx launchers.", "nemo-lens does not read it."},
    {"PBS_JOBID", false, "", "The same under PBS.", "nemo-lens does not read it."},
    {"LSB_JOBID", false, "", "The same under LSF.", "nemo-lens does not read it."},
    {"SLURM_JOB_NAME", false, "", "slurm.job.name.", ""},
    {"SLURM_NODELIST", false, "", "slurm.nodelist.", ""},
    {"SLURM_JOB_NODELIST", false, "", "slurm.nodelist where SLURM_NODELIST is not set.", "nemo-lens does not read it."},
    {"SLURM_NNODES", false, "", "slurm.nnodes, as text.", ""},
    {"SLURM_JOB_NUM_NODES", false, "", "slurm.nnodes where SLURM_NNODES is not set.", "nemo-lens does not read it."},
    {"SLURM_NTASKS", false, "", "slurm.ntasks, as text.", ""},
    {"SLURM_PARTITION", false, "", "slurm.partition.", ""},
    {"SLURM_JOB_PARTITION", false, "", "slurm.partition where SLURM_PARTITION is not set.",
     "nemo-lens does not read it, although it is the one Slurm sets."},
    {"SLURM_CLUSTER_NAME", false, "", "slurm.cluster.name, slurm.cluster, and part of the UUIDs.", ""},
    {"SLURM_ARRAY_JOB_ID", false, "", "slurm.array.job_id, and part of the UUIDs.", ""},
    {"SLURM_ARRAY_TASK_ID", false, "", "slurm.array.task_id.", ""},
    {"SLURM_RESTART_COUNT", false, "", "slurm.restart_count, and part of nemo.lens.run_uuid.", ""},
    {"TORCHELASTIC_RESTART_COUNT", false, "", "slurm.torchelastic.restart_count, and part of nemo.lens.run_uuid.", ""},
    {"LENS_SLURM_SLUID", false, "", "slurm.sluid.", ""},
    {"LENS_SLURM_ARRAY_SLUID", false, "", "slurm.array.sluid.", ""},
    {"NVRX_CYCLE", false, "", "nvrx.cycle.", ""},
    {"NVRX_INFRA_RANK", false, "", "nvrx.infra_rank.", ""},
    {"NVRX_MEMBERSHIP", false, "", "nvrx.membership.", ""},
    {"CUDA_VISIBLE_DEVICES", false, "", "host.gpu.count; where it is not set, the number of /dev/nvidiaN.",
     "Counted as CUDA does: up to the first entry that is no device. nemo-lens counts commas and else asks "
     "nvidia-smi."},
    {"KUBERNETES_SERVICE_HOST", false, "", "Turns the Kubernetes attributes on.", ""},
    {"K8S_NAMESPACE", false, "", "k8s.namespace.name.", ""},
    {"K8S_POD_NAME", false, "", "k8s.pod.name.", ""},
    {"HOSTNAME", false, "", "k8s.pod.name where K8S_POD_NAME is not set.", ""},
    {"K8S_POD_UID", false, "", "k8s.pod.uid.", ""},
    {"K8S_NODE_NAME", false, "", "k8s.node.name.", ""},
    {"K8S_CONTAINER_NAME", false, "", "k8s.container.name.", ""},
    {"K8S_JOB_NAME", false, "", "k8s.job.name.", ""},
};

}  // namespace

std::span<const VariableDescription> known_variables() { return kVariables; }

std::vector<std::string> prefixed_keys() {
  std::vector<std::string> keys;
  for (const VariableDescription& variable : kVariables) {
    if (variable.is_prefixed) keys.emplace_back(variable.name);
  }
  return keys;
}

}  // namespace pharos::lens
