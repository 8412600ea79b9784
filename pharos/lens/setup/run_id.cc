#include "pharos/lens/setup/run_id.h"

#include <openssl/evp.h>

#include <cstdio>
#include <random>

#include "pharos/base/error.h"

namespace pharos::lens {
namespace {

/// 6ba7b811-9dad-11d1-80b4-00c04fd430c8 (RFC 9562, section 6.6).
constexpr unsigned char kUrlNamespace[16] = {0x6b, 0xa7, 0xb8, 0x11, 0x9d, 0xad, 0x11, 0xd1,
                                             0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8};

std::string cluster_of(const Environment& environment) {
  return environment.get_nonempty("SLURM_CLUSTER_NAME").value_or("nocluster");
}

bool is_array_job(const Environment& environment) { return environment.get("SLURM_ARRAY_TASK_ID").has_value(); }

/// An array's elements have job ids of their own; what they have in common is the array's.
std::string job_of(const Environment& environment) {
  const char* variable = is_array_job(environment) ? "SLURM_ARRAY_JOB_ID" : "SLURM_JOB_ID";
  return environment.get_nonempty(variable).value_or("nojob");
}

}  // namespace

std::string choose_run_id(const LensConfig& config, const Environment& environment, const std::string& shared) {
  if (!config.run_id.empty()) return config.run_id;
  for (const char* variable : {"SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "PBS_JOBID", "LSB_JOBID"}) {
    const auto id = environment.get_nonempty(variable);
    if (id && *id != "none") return *id;
  }
  return shared.empty() ? make_random_run_id() : shared;
}

std::string make_random_run_id() {
  std::random_device device;
  char text[13];
  std::snprintf(text, sizeof text, "%06x%06x", device() & 0xffffffU, device() & 0xffffffU);
  return text;
}

std::string uuid5_of_url(std::string_view name) {
  std::string message(reinterpret_cast<const char*>(kUrlNamespace), sizeof kUrlNamespace);
  message += name;
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  PHAROS_CHECK(EVP_Digest(message.data(), message.size(), digest, &size, EVP_sha1(), nullptr) == 1,
               "OpenSSL refuses SHA-1");
  digest[6] = static_cast<unsigned char>((digest[6] & 0x0f) | 0x50);  // version 5
  digest[8] = static_cast<unsigned char>((digest[8] & 0x3f) | 0x80);  // variant of RFC 9562
  std::string uuid;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) uuid += '-';
    char byte[3];
    std::snprintf(byte, sizeof byte, "%02x", static_cast<unsigned int>(digest[i]));
    uuid += byte;
  }
  return uuid;
}

std::string job_uuid(const Environment& environment) {
  return uuid5_of_url("nemo.lens.job/" + cluster_of(environment) + "/" + job_of(environment));
}

std::string run_uuid(const Environment& environment) {
  std::string name = "nemo.lens.run/" + cluster_of(environment) + "/" + job_of(environment);
  if (!is_array_job(environment)) name += "/sr" + environment.get_nonempty("SLURM_RESTART_COUNT").value_or("0");
  if (const auto elastic = environment.get("TORCHELASTIC_RESTART_COUNT")) name += "/te" + *elastic;
  return uuid5_of_url(name);
}

}  // namespace pharos::lens
