#include "pharos/lens/otlp/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "pharos/base/error.h"
#include "pharos/lens/otlp/headers.h"
#include "pharos/lens/otlp/url.h"

namespace pharos::lens::otlp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;

/// Sets OTEL_EXPORTER_OTLP_<name> for one scope; all others are unset.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& values) {
    for (const char* part : {"", "TRACES_", "METRICS_", "LOGS_"}) {
      for (const char* suffix : {"ENDPOINT", "PROTOCOL", "HEADERS", "TIMEOUT", "COMPRESSION", "CERTIFICATE",
                                 "CLIENT_CERTIFICATE", "CLIENT_KEY", "INSECURE"}) {
        unsetenv((std::string("OTEL_EXPORTER_OTLP_") + part + suffix).c_str());
      }
    }
    for (const auto& [name, value] : values) {
      names_.push_back("OTEL_EXPORTER_OTLP_" + name);
      setenv(names_.back().c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }

 private:
  std::vector<std::string> names_;
};

using Values = std::map<std::string, std::string>;

struct Result {
  Options options;
  std::vector<std::string> warnings;
  std::string error;

  const SignalOptions& operator[](Signal signal) const { return options[static_cast<std::size_t>(signal)]; }
};

Result read(const Values& values) {
  const Environment environment(values);
  Result result;
  try {
    result.options = options_from_environment(result.warnings);
  } catch (const base::UserError& error) {
    result.error = error.what();
  }
  return result;
}

TEST(OtlpOptions, Endpoints) {
  struct Case {
    Values values;
    std::string traces_url;
    std::string logs_url;
    bool use_tls = false;
  };
  const Case cases[] = {
      {{}, "http://localhost:4317", "http://localhost:4317"},
      {{{"PROTOCOL", "http/protobuf"}}, "http://localhost:4318/v1/traces", "http://localhost:4318/v1/logs"},
      {{{"ENDPOINT", " "}}, "http://localhost:4317", "http://localhost:4317"},
      {{{"ENDPOINT", "http://c:1"}, {"PROTOCOL", "HTTP/Protobuf"}}, "http://c:1/v1/traces", "http://c:1/v1/logs"},
      {{{"ENDPOINT", "http://c:1/p/"}, {"PROTOCOL", "http/protobuf"}},
       "http://c:1/p/v1/traces",
       "http://c:1/p/v1/logs"},
      {{{"ENDPOINT", "http://c:1/p?k=v"}, {"PROTOCOL", "http/protobuf"}},
       "http://c:1/p/v1/traces?k=v",
       "http://c:1/p/v1/logs?k=v"},
      {{{"ENDPOINT", "http://c:1"}, {"TRACES_ENDPOINT", "https://t:2/mine"}, {"PROTOCOL", "http/protobuf"}},
       "https://t:2/mine",
       "http://c:1/v1/logs",
       true},
      {{{"ENDPOINT", "http://c:1"}, {"LOGS_PROTOCOL", "http/protobuf"}}, "http://c:1", "http://c:1/v1/logs"},
      {{{"ENDPOINT", "http://[::1]:4317"}}, "http://[::1]:4317", "http://[::1]:4317"},
      {{{"ENDPOINT", "https://c:1"}, {"INSECURE", "true"}}, "https://c:1", "https://c:1", true},
      {{{"ENDPOINT", "http://c:1"}, {"INSECURE", "false"}}, "https://c:1", "https://c:1", true},
      {{{"ENDPOINT", "c:1"}}, "https://c:1", "https://c:1", true},
      {{{"ENDPOINT", "c:1"}, {"INSECURE", "TRUE"}}, "http://c:1", "http://c:1"},
      {{{"ENDPOINT", "c:1"}, {"LOGS_INSECURE", "true"}}, "https://c:1", "http://c:1", true},
  };
  for (const Case& one : cases) {
    const Result result = read(one.values);
    EXPECT_EQ(result.error, "");
    EXPECT_THAT(result.warnings, IsEmpty());
    EXPECT_EQ(result[Signal::kTraces].url, one.traces_url);
    EXPECT_EQ(result[Signal::kTraces].use_tls, one.use_tls) << one.traces_url;
    EXPECT_EQ(result[Signal::kLogs].url, one.logs_url);
  }
}

TEST(OtlpOptions, DoubtfulValuesAreObeyedWithOneWarning) {
  struct Case {
    Values values;
    std::string warning;
  };
  const Case cases[] = {
      {{{"ENDPOINT", "http://c:1/v1/traces"}}, "path is not used"},
      {{{"ENDPOINT", "http://c"}}, "has no port: 80"},
      {{{"PROTOCOL", "http/json"}}, "protobuf is sent all the same"},
      {{{"ENDPOINT", "c:1"}, {"INSECURE", "yes"}}, "read as false"},
      {{{"TIMEOUT", "10"}}, "read as seconds"},
      {{{"TIMEOUT", "150.5"}}, "read as seconds"},
      {{{"CERTIFICATE", "/dev/null"}}, "CERTIFICATE is not used"},
      {{{"HEADERS", "secret"}}, "entry 1 is left out"},
  };
  for (const Case& one : cases) {
    const Result result = read(one.values);
    EXPECT_EQ(result.error, "");
    ASSERT_FALSE(result.warnings.empty()) << one.warning;
    EXPECT_THAT(result.warnings[0], HasSubstr(one.warning));
    EXPECT_THAT(result.warnings[0], Not(HasSubstr("secret")));
    EXPECT_LE(result.warnings.size(), one.values.contains("CERTIFICATE") ? 3U : 1U);  // names the signal
  }
}

TEST(OtlpOptions, ValuesNobodyCanObeyAreErrors) {
  struct Case {
    Values values;
    std::string error;
  };
  const Case cases[] = {
      {{{"PROTOCOL", "http/protobuff"}}, "Did you mean http/protobuf?"},
      {{{"LOGS_PROTOCOL", "thrift"}}, "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL = thrift"},
      {{{"COMPRESSION", "deflate"}}, "Use gzip or none."},
      {{{"METRICS_COMPRESSION", "zstd"}}, "OTEL_EXPORTER_OTLP_METRICS_COMPRESSION = zstd"},
      {{{"TIMEOUT", "-5"}}, "not a time limit"},
      {{{"TIMEOUT", "0"}}, "not a time limit"},
      {{{"TIMEOUT", "10s"}}, "not a time limit"},
      {{{"TIMEOUT", "nan"}}, "not a time limit"},
      {{{"TIMEOUT", "100000000"}}, "not a time limit"},
      {{{"ENDPOINT", "ftp://user:secret@c"}}, "neither http nor https"},
      {{{"ENDPOINT", "c:1"}, {"PROTOCOL", "http/protobuf"}}, "has no scheme"},
      {{{"ENDPOINT", "http://:secret@"}}, "is not a URL"},
      {{{"ENDPOINT", "http://c:secret"}}, "is not a URL"},
      {{{"ENDPOINT", "http://c/a secret"}, {"PROTOCOL", "http/protobuf"}}, "contains a blank"},
      {{{"CERTIFICATE", "/nowhere/ca.pem"}}, "OTEL_EXPORTER_OTLP_CERTIFICATE: the file /nowhere/ca.pem"},
      {{{"TRACES_CLIENT_KEY", "/"}}, "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY: the file /"},
      {{{"ENDPOINT", "https://c:1"}, {"CLIENT_KEY", "/dev/null"}}, "without a client certificate"},
  };
  for (const Case& one : cases) {
    const Result result = read(one.values);
    EXPECT_THAT(result.error, HasSubstr(one.error));
    EXPECT_THAT(result.error, Not(HasSubstr("secret")));
  }
}

TEST(OtlpOptions, TimeoutsInBothUnits) {
  struct Case {
    std::string text;
    int milliseconds;
  };
  for (const Case& one : {Case{"", 10000}, Case{"10000", 10000}, Case{"100", 100}, Case{"99", 99000}, Case{"10", 10000},
                          Case{"2.5", 2500}, Case{"0.25", 250}, Case{"150.5", 150500}}) {
    EXPECT_EQ(read({{"TIMEOUT", one.text}})[Signal::kLogs].timeout.count(), one.milliseconds) << one.text;
  }
  const Result result = read({{"TIMEOUT", "20000"}, {"METRICS_TIMEOUT", "30000"}});
  EXPECT_EQ(result[Signal::kTraces].timeout.count(), 20000);
  EXPECT_EQ(result[Signal::kMetrics].timeout.count(), 30000);
}

TEST(OtlpOptions, CompressionAndFiles) {
  const std::string folder = testing::TempDir();
  for (const char* name : {"ca.pem", "both.pem"}) std::ofstream(folder + name) << "x";
  const Result result = read({{"ENDPOINT", "https://c:1"},
                              {"COMPRESSION", "GZIP"},
                              {"LOGS_COMPRESSION", "none"},
                              {"CERTIFICATE", folder + "ca.pem"},
                              {"TRACES_CLIENT_CERTIFICATE", folder + "both.pem"}});
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(result[Signal::kTraces].compression, Compression::kGzip);
  EXPECT_EQ(result[Signal::kLogs].compression, Compression::kNone);
  EXPECT_EQ(result[Signal::kLogs].certificate, folder + "ca.pem");
  EXPECT_EQ(result[Signal::kTraces].client_key, folder + "both.pem");  // the one file may hold both
  EXPECT_EQ(result[Signal::kLogs].client_key, "");
}

TEST(OtlpOptions, HeadersOfTheSignalReplaceTheGeneralOnes) {
  const Result result = read({{"HEADERS", "a=1,b=2"}, {"TRACES_HEADERS", "c=3"}});
  EXPECT_THAT(result[Signal::kTraces].headers, ElementsAre(Pair("c", "3")));
  EXPECT_THAT(result[Signal::kLogs].headers, ElementsAre(Pair("a", "1"), Pair("b", "2")));
}

TEST(OtlpOptions, CredentialsOfTheUrlBecomeAHeader) {
  const Result result = read({{"ENDPOINT", "http://me:p%40ss@c:1"}, {"LOGS_HEADERS", "authorization=Bearer x"}});
  EXPECT_EQ(result[Signal::kTraces].url, "http://c:1");
  EXPECT_THAT(result[Signal::kTraces].headers, ElementsAre(Pair("authorization", "Basic bWU6cEBzcw==")));
  EXPECT_THAT(result[Signal::kLogs].headers, ElementsAre(Pair("authorization", "Bearer x")));
}

TEST(OtlpHeaders, AreDecodedAndChecked) {
  struct Case {
    std::string text;
    Headers headers;
    std::size_t num_warnings = 0;
  };
  const Case cases[] = {
      {"", {}},
      {"Api-Key=abc=def==", {{"api-key", "abc=def=="}}},
      {" a = with blanks , b=%20x%2C%zz% ", {{"a", "with blanks"}, {"b", " x,%zz%"}}},
      {"a=1,a=2", {{"a", "2"}}},
      {"a=,,", {{"a", ""}}},
      {"novalue,=v,a b=c,ok=1", {{"ok", "1"}}, 3},
      {"evil=x%0d%0ay: z,nul=%00", {}, 2},
      {"Content-Type=text/plain,grpc-timeout=1S,TE=x", {}, 3},
  };
  for (const Case& one : cases) {
    std::vector<std::string> warnings;
    EXPECT_EQ(parse_headers(one.text, "V", warnings), one.headers) << one.text;
    EXPECT_EQ(warnings.size(), one.num_warnings) << one.text;
  }
}

TEST(OtlpHeaders, FaultsAreSaidAtMostSixTimes) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "x,";
  std::vector<std::string> warnings;
  EXPECT_TRUE(parse_headers(text + "a=1", "V", warnings) == (Headers{{"a", "1"}}));
  ASSERT_EQ(warnings.size(), 6u);
  EXPECT_EQ(warnings.back(), "V: 995 further entries are left out, too.");
}

TEST(OtlpUrl, PrintableHidesSecrets) {
  EXPECT_EQ(printable_url("https://user:pass@c:1/v1/traces?key=1#x"), "https://…@c:1/v1/traces");
  EXPECT_EQ(printable_url("http://c:1/a@b"), "http://c:1/a@b");
  EXPECT_EQ(printable_url("http://" + std::string(1000, 'c')), "http://" + std::string(93, 'c') + "…");
}

}  // namespace
}  // namespace pharos::lens::otlp
