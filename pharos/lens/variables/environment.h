// Where telemetry's set-up reads environment variables from: the process, or a map (tests, replays).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pharos::lens {

class Environment {
 public:
  virtual ~Environment() = default;

  /// Value of `name`, or nullopt when it is not set. A set but empty variable gives an empty text.
  virtual std::optional<std::string> get(const std::string& name) const = 0;

  /// All variables whose name starts with `prefix`, sorted.
  virtual std::vector<std::string> names_starting_with(std::string_view prefix) const = 0;

  /// Value without blanks around it; nullopt when it is not set or blank (lens.md section 1.2: blank means unset).
  std::optional<std::string> get_nonblank(const std::string& name) const;

  /// Value as it is; nullopt when it is not set or empty.
  std::optional<std::string> get_nonempty(const std::string& name) const;
};

/// The environment of this process, read at each call.
class ProcessEnvironment : public Environment {
 public:
  std::optional<std::string> get(const std::string& name) const override;
  std::vector<std::string> names_starting_with(std::string_view prefix) const override;
};

class MapEnvironment : public Environment {
 public:
  MapEnvironment() = default;
  explicit MapEnvironment(std::map<std::string, std::string> variables) : variables_(std::move(variables)) {}

  std::optional<std::string> get(const std::string& name) const override;
  std::vector<std::string> names_starting_with(std::string_view prefix) const override;

 private:
  std::map<std::string, std::string> variables_;
};

}  // namespace pharos::lens
