#include "pharos/config/validate/validate.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "pharos/base/text.h"
#include "pharos/config/schema/schema.h"
#include "pharos/config/validate/rule_checker.h"

namespace pharos::config {
namespace {

/// A number out of the field's range, or a text outside its choices; lists are checked element by element.
bool in_range(const Field& field, const Value& value) {
  if (value.is_list()) {
    for (const Value& element : value.list) {
      if (!in_range(field, element)) return false;
    }
    return true;
  }
  if (value.is_string() && !field.choices.empty() && field.codec->choices.empty()) {
    for (const std::string& choice : field.choices) {
      if (choice == value.text) return true;
    }
    return false;
  }
  if (value.kind != Value::Kind::kInteger && value.kind != Value::Kind::kFloat) return true;
  const double number = value.kind == Value::Kind::kInteger ? static_cast<double>(value.integer) : value.number;
  if (std::isnan(number)) return false;
  // An infinite number says "no limit" where the default does, and for clipping; elsewhere it spoils what it touches.
  const bool may_be_infinite =
      field.name == "optimizer.clip_grad" ||
      (field.default_value.kind == Value::Kind::kFloat && std::isinf(field.default_value.number));
  if (std::isinf(number) && !may_be_infinite) return false;
  if (field.minimum && (field.minimum_excluded ? number <= *field.minimum : number < *field.minimum)) return false;
  return !field.maximum || !(field.maximum_excluded ? number >= *field.maximum : number > *field.maximum);
}

}  // namespace

void RuleChecker::fail(const std::vector<std::string>& fields, const std::string& message, const std::string& remedy) {
  std::vector<std::string> origins;
  for (const std::string& field : fields) origins.push_back(resolved_.describe(field));
  problems_.push_back({fields.empty() ? "" : fields.front(), message, base::join(origins, "; "), remedy});
}

void RuleChecker::require(bool holds, const std::vector<std::string>& fields, const std::string& message,
                          const std::string& remedy) {
  if (!holds) fail(fields, message, remedy);
}

std::string RuleChecker::show(const std::string& field) const {
  return field + " = " + to_message_text(schema().find(field)->read(resolved_.config));
}

std::string RuleChecker::stored(const std::string& field) const {
  return to_message_text(schema().find(field)->read(resolved_.config));
}

std::string divisors_text(std::int64_t number) {
  std::vector<std::string> divisors;
  for (std::int64_t divisor = 1; divisor <= number && divisor <= 4096 && divisors.size() < 12; ++divisor) {
    if (number % divisor == 0) divisors.push_back(std::to_string(divisor));
  }
  if (divisors.size() < 2) return base::join(divisors, "");
  const std::string last = divisors.back();
  divisors.pop_back();
  return base::join(divisors, ", ") + " or " + last;
}

void check_fields(RuleChecker& check) {
  const bool from_folder = check.config().model.hf_path.has_value();
  for (const Field& field : schema().fields()) {
    if (!field.member) continue;
    const Value value = field.read(check.config());
    if (field.required && value.is_null() && !(from_folder && field.section == "model")) {
      check.fail({field.name}, field.name + " is required and not set.", "Set it: " + field.doc + ".");
    } else if (!in_range(field, value)) {
      check.fail({field.name}, check.show(field.name) + " is out of range.",
                 "Allowed: " + (field.range_text().empty() ? "a finite number" : field.range_text()) + ".");
    }
  }
}

void check_capabilities(RuleChecker& check) {
  if (check.purpose() != Purpose::kTrain) return;
  for (const Field& field : schema().fields()) {
    if (field.need != Need::kLater || field.read(check.config()) == field.default_value) continue;
    check.fail({field.name},
               check.show(field.name) + " needs " + field.capability + ", which this release cannot train with.",
               "Leave it at " + to_flow_text(field.default_value) + "; `pharos plan` accepts it.");
  }
}

std::vector<Problem> validate(const ResolvedConfig& resolved, std::int64_t world_size, Purpose purpose) {
  RuleChecker check(resolved, world_size, purpose);
  check_fields(check);
  std::vector<Problem> problems = check.take();
  // Rules divide by sizes; a group of rules is only asked when the sections it reads are in range.
  const auto usable = [&](std::initializer_list<const char*> sections) {
    return std::none_of(problems.begin(), problems.end(), [&](const Problem& problem) {
      return std::any_of(sections.begin(), sections.end(),
                         [&](const char* section) { return problem.field.starts_with(section); });
    });
  };
  if (usable({"model."})) {
    check_model(check);
    check_recompute(check);
    check_experts(check);
    check_parallelism(check);
    check_pipeline(check);
  }
  if (usable({"model.", "train.", "validation.", "dataset."})) check_batches(check);
  if (usable({"optimizer."})) check_optimizer(check);
  if (usable({"scheduler.", "optimizer.", "train."})) check_scheduler(check);
  if (usable({"dataset.", "tokenizer.", "model."})) check_data(check);
  check_system(check);
  check_checkpoint(check);
  check_capabilities(check);
  for (Problem& problem : check.take()) problems.push_back(std::move(problem));
  return problems;
}

}  // namespace pharos::config
