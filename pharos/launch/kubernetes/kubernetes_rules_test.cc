#include "pharos/launch/kubernetes/kubernetes_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "pharos/base/error.h"

namespace pharos::launch {
namespace {

TEST(KubernetesRules, NamesLabelsAndAmounts) {
  const std::string long_name(64, 'a');
  for (const std::string text : {"a", "0", "a-b", "train-1"}) EXPECT_TRUE(is_dns_label(text)) << text;
  for (const std::string& text :
       {std::string(), std::string("A"), std::string("a_b"), std::string("-a"), std::string("a-"), std::string("a.b"),
        std::string("a b"), std::string("a\n"), long_name})
    EXPECT_FALSE(is_dns_label(text)) << text;
  for (const std::string text : {"a", "a.b-c.0"}) EXPECT_TRUE(is_dns_subdomain(text)) << text;
  for (const std::string text : {"", "a..b", ".a", "a.", "a.-b", "A", "a/b"})
    EXPECT_FALSE(is_dns_subdomain(text)) << text;
  for (const std::string text : {"a", "node.kubernetes.io/instance-type", "A_b.C"})
    EXPECT_TRUE(is_label_key(text)) << text;
  for (const std::string text : {"", "/a", "a/", "a/b/c", "-a", "a b", "A/b"}) EXPECT_FALSE(is_label_key(text)) << text;
  for (const std::string text : {"", "p5.48xlarge", "A_b"}) EXPECT_TRUE(is_label_value(text)) << text;
  for (const std::string& text : {std::string("a b"), std::string("a/b"), std::string("_a"), long_name})
    EXPECT_FALSE(is_label_value(text)) << text;
  for (const std::string text : {"64Gi", "1", "1.5G", ".5Gi", "1e9", "2E", "1Ei", "+1M", "10k"})
    EXPECT_TRUE(is_byte_quantity(text)) << text;
  for (const std::string text :
       {"", "64GB", "64gi", "64 Gi", "-1Gi", "0", "0Gi", "0e9", "Gi", "1K", "1.2.3", "x", "100m"})
    EXPECT_FALSE(is_byte_quantity(text)) << text;
}

TEST(KubernetesRules, WhatTheServerWouldRefuseIsSaidBefore) {
  const struct {
    std::function<void(JobRequest&, KubernetesOptions&)> change;
    const char *option, *what;
  } kCases[] = {
      {[](JobRequest& r, KubernetesOptions&) { r.container->image = "a b:1"; }, "--image", "blank"},
      {[](JobRequest& r, KubernetesOptions&) { r.container->image = "a:1\n"; }, "--image", "blank"},
      {[](JobRequest& r, KubernetesOptions&) {
         r.container->mounts = {"/a:/fsx", "/b:/fsx/"};
       },
       "--mounts", "Two mounts are at /fsx."},
      {[](JobRequest& r, KubernetesOptions&) { r.container->mounts.push_back("/a:/dev/./shm"); }, "--mounts",
       "shared memory"},
      {[](JobRequest& r, KubernetesOptions&) { r.container->mounts.push_back("/a:/"); }, "--mounts", "hide the image"},
      {[](JobRequest& r, KubernetesOptions&) { r.container->mounts.push_back("/a:/x/.."); }, "--mounts",
       "hide the image"},
      {[](JobRequest& r, KubernetesOptions&) { r.container->mounts.push_back("/a/../b:/x"); }, "--mounts", "'..'"},
      {[](JobRequest& r, KubernetesOptions&) { r.container->mounts = {"pvc/My_Claim:/fsx"}; }, "--mounts",
       "'My_Claim' is no name"},
      {[](JobRequest&, KubernetesOptions& o) { o.name_space = "Train"; }, "--k8s-namespace", "'Train' is no name"},
      {[](JobRequest&, KubernetesOptions& o) { o.shared_memory = "64GB"; }, "--k8s-shared-memory",
       "'64GB' is no amount"},
      {[](JobRequest&, KubernetesOptions& o) {
         o.node_selector = {{"a b", "c"}};
       },
       "--k8s-node-selector", "'a b=c'"},
      {[](JobRequest&, KubernetesOptions& o) {
         o.node_selector = {{"a", "b=c"}};
       },
       "--k8s-node-selector", "'a=b=c'"},
      {[](JobRequest&, KubernetesOptions& o) { o.efa_per_node = 4; }, "--k8s-efa", "4 EFA devices"},
      {[](JobRequest& r, KubernetesOptions& o) {
         r.environment.profile = NetworkProfile::kEfa;
         r.uses_gpus = false;
         o.efa_per_node = 4;
       },
       "--k8s-efa", "4 EFA devices"},
  };
  for (const auto& [change, option, what] : kCases) {
    JobRequest request{.name = "a",
                       .recipe = "tiny",
                       .overrides = {},
                       .run_folder = "/fsx/r",
                       .container = ContainerRequest{.image = "registry:5000/a@sha256:0", .mounts = {"/fsx:/fsx"}},
                       .environment = {.variables = {}, .warnings = {}}};
    KubernetesOptions options{.node_selector = {{"kubernetes.io/arch", "amd64"}}};
    EXPECT_NO_THROW(kubernetes_manifest(request, options));
    change(request, options);
    try {
      kubernetes_manifest(request, options);
      ADD_FAILURE() << what;
    } catch (const base::UserError& error) {
      EXPECT_EQ(error.parts().where, option) << what;
      EXPECT_THAT(error.parts().what, ::testing::HasSubstr(what));
      EXPECT_FALSE(error.parts().fix.empty());
    }
  }
}

}  // namespace
}  // namespace pharos::launch
