#include "pharos/base/node_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/base/error.h"
#include "pharos/base/text.h"

namespace pharos::base {
namespace {

TEST(NodeList, IsExpandedAsSlurmDoes) {
  const struct {
    const char* list;
    const char* hosts;
  } kCases[] = {
      {"n1", "n1"},
      {"n1,n2", "n1 n2"},
      {"n[1-3]", "n1 n2 n3"},
      {"n[08-11]", "n08 n09 n10 n11"},
      {"n[098-101]", "n098 n099 n100 n101"},
      {"n[1,3,7-8]", "n1 n3 n7 n8"},
      {"rack[3-4]n[01-02,11],x7", "rack3n01 rack3n02 rack3n11 rack4n01 rack4n02 rack4n11 x7"},
      {"gpu[1-2]-ib.cluster", "gpu1-ib.cluster gpu2-ib.cluster"},
      {"a[1-2]b[3]c[04-05]d", "a1b3c04d a1b3c05d a2b3c04d a2b3c05d"},
      {"[1-2]", "1 2"},
      {"n[0-1],n[0-1]", "n0 n1 n0 n1"},
      {"n[007]", "n007"},
  };
  for (const auto& [list, hosts] : kCases) EXPECT_EQ(join(expand_node_list(list), " "), hosts) << list;
}

TEST(NodeList, SaysWhereItIsMalformed) {
  const struct {
    const char* list;
    const char* message;
  } kCases[] = {
      {"", "it is empty"},
      {",n1", "a host name is missing, at character 1"},
      {"n1,", "a host name is missing, at character 4"},
      {"n1,,n2", "a host name is missing, at character 4"},
      {"n[1-3", "a ']' is missing, at character 6"},
      {"n1]", "']' has no place in it, at character 3"},
      {"n[]", "a number is missing, at character 3"},
      {"n[1-]", "a number is missing, at character 5"},
      {"n[1,]", "a number is missing, at character 5"},
      {"n[a-b]", "a number is missing, at character 3"},
      {"n[1-2-3]", "a number, '-', ',' or ']' is expected, at character 6"},
      {"n[3-1]", "a range runs backwards"},
      {"n[[1]]", "a number is missing, at character 3"},
      {"n1 n2", "' ' has no place in it, at character 3"},
      {"n;reboot", "';' has no place in it"},
      {"n[0-99999999]", "more than 1000000 hosts"},
      {"a[0-9999]b[0-9999]", "more than 1000000 hosts"},
      {"n[0-99999999999999999999]", "a number is too large"},
  };
  for (const auto& [list, message] : kCases) {
    try {
      expand_node_list(list);
      ADD_FAILURE() << list << " was read";
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(message)) << list;
    }
  }
}

}  // namespace
}  // namespace pharos::base
