// What the API server of Kubernetes takes for names, labels, amounts and mounts.
#pragma once

#include <string_view>
#include <vector>

#include "pharos/launch/cluster/job_request.h"
#include "pharos/launch/kubernetes/kubernetes_manifest.h"
#include "pharos/launch/kubernetes/pod_mounts.h"

namespace pharos::launch {

/// RFC 1123: lower-case letters, digits and `-` inside, at most 63; a subdomain is labels with dots, at most 253.
bool is_dns_label(std::string_view text);
bool is_dns_subdomain(std::string_view text);
/// "[SUBDOMAIN/]NAME", and the value of a label, which may be empty.
bool is_label_key(std::string_view text);
bool is_label_value(std::string_view text);
/// A positive amount of bytes: "64Gi", "1.5G", "1e9".
bool is_byte_quantity(std::string_view text);

/// UserError naming the option and the rule for what the API server would refuse.
void check_kubernetes_rules(const JobRequest& request, const KubernetesOptions& options,
                            const std::vector<PodMount>& mounts);

}  // namespace pharos::launch
