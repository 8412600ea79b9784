// Shared by the validate_*.cc files: what a rule sees, and how it reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/config/problem.h"
#include "pharos/config/resolve.h"
#include "pharos/config/run_config.h"

namespace pharos::config {

class RuleChecker {
 public:
  RuleChecker(const ResolvedConfig& resolved, std::int64_t world_size, Purpose purpose)
      : resolved_(resolved), world_size_(world_size), purpose_(purpose) {}

  const RunConfig& config() const { return resolved_.config; }
  const ResolvedConfig& resolved() const { return resolved_; }
  std::int64_t world_size() const { return world_size_; }
  Purpose purpose() const { return purpose_; }

  /// Reports a broken rule. `fields` (dotted names) are listed with value and origin; the first is the problem's field.
  void fail(const std::vector<std::string>& fields, const std::string& message, const std::string& remedy = "");
  /// As fail(), unless `holds`.
  void require(bool holds, const std::vector<std::string>& fields, const std::string& message,
               const std::string& remedy = "");
  /// "model.hidden_size = 64": field and value as they stand.
  std::string show(const std::string& field) const;
  /// Text of a stored field (need X); its default when it was not set.
  std::string stored(const std::string& field) const;

  std::vector<Problem> take() { return std::move(problems_); }

 private:
  const ResolvedConfig& resolved_;
  std::int64_t world_size_;
  Purpose purpose_;
  std::vector<Problem> problems_;
};

/// "1, 2, 3, 4, 6 or 12": the divisors of `number`, at most twelve of them.
std::string divisors_text(std::int64_t number);

void check_fields(RuleChecker& check);
void check_capabilities(RuleChecker& check);
void check_model(RuleChecker& check);
void check_recompute(RuleChecker& check);
void check_experts(RuleChecker& check);
void check_parallelism(RuleChecker& check);
void check_pipeline(RuleChecker& check);
void check_batches(RuleChecker& check);
void check_optimizer(RuleChecker& check);
void check_scheduler(RuleChecker& check);
void check_data(RuleChecker& check);
void check_system(RuleChecker& check);
void check_checkpoint(RuleChecker& check);

}  // namespace pharos::config
