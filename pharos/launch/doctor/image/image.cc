#include "pharos/launch/doctor/image/image.h"

#include <cctype>

#include "pharos/launch/doctor/bounded.h"
#include "pharos/launch/doctor/image/parts.h"

namespace pharos::launch {
namespace {

/// "2.29.3-1" and "2.29.3", "2.11.0+cu128" and "2.11.0", "12.8" and "12.8.1" agree: one begins with the other.
bool agrees(const std::string& wanted, const std::string& found) {
  const std::string shorter = wanted.substr(0, wanted.find('-'));
  const auto begins_with = [](const std::string& text, const std::string& part) {
    return text.starts_with(part) && (text.size() == part.size() || std::isdigit(text[part.size()]) == 0);
  };
  return begins_with(found, shorter) || begins_with(shorter, found);
}

Finding bounded_finding(const Finding& title, std::int64_t deadline_ns, const std::function<Finding()>& check) {
  BoundedCall call([&check] { return to_json(Findings{check()}); });
  const BoundedResult result = call.wait(deadline_ns);
  if (result.end == BoundedResult::End::kDone) return findings_from_json(result.value).front();
  Finding problem = title;
  problem.verdict = Verdict::kFailure;
  problem.value = result.text;
  return problem;
}

}  // namespace

Finding judge_part(const std::string& name, const std::string& version, const FoundPart& found) {
  Finding finding{.check = "image", .subject = name, .value = version};
  finding.data = {{"wanted", version}, {"found", found.version}, {"path", found.path}};
  if (!found.error.empty()) {
    finding.value += " is wanted: " + found.error;
    finding.verdict = Verdict::kFailure;
    finding.remedy = "The image was not built as its table says: build it again (pharos image build).";
  } else if (found.needs_driver) {
    finding.value += ", needs the host's GPU driver to be loaded (" + found.path + ")";
    finding.verdict = Verdict::kNote;
  } else if (found.version.empty()) {
    finding.value += ", there (" + found.path + "), but it does not tell its version";
    finding.verdict = Verdict::kNote;
  } else if (!agrees(version, found.version)) {
    finding.value += " is wanted, " + found.version + " is there (" + found.path + ")";
    finding.verdict = Verdict::kFailure;
    finding.remedy = "Another version lies earlier in the search path (LD_LIBRARY_PATH), or the image is old.";
  } else {
    finding.value += found.path.empty() ? "" : " (" + found.path + ")";
  }
  return finding;
}

Findings check_image(const Node& node, const ImageOptions& options, std::int64_t deadline_ns) {
  Findings findings;
  Finding recipes{.check = "image",
                  .subject = "recipes",
                  .value = counted(static_cast<std::int64_t>(options.num_recipes), "recipe")};
  if (options.num_recipes == 0) {
    recipes.verdict = Verdict::kFailure;
    recipes.remedy = "Install the program with its folder share/pharos/recipes (cmake --install).";
  }
  findings.push_back(recipes);
  const Finding computes{.check = "image", .subject = "libtorch", .value = options.libtorch_version + " computes"};
  findings.push_back(bounded_finding(computes, deadline_ns, [&] {
    options.compute();
    return computes;
  }));
  for (const auto& [name, version] : options.versions) {
    const Finding title{.check = "image", .subject = name, .value = {}};
    findings.push_back(bounded_finding(title, deadline_ns, [&, &name = name, &version = version] {
      const auto found = find_part(node, name, version, options.libtorch_version);
      if (found) return judge_part(name, version, *found);
      return Finding{
          .check = "image", .subject = name, .value = version + ", which is not looked for", .verdict = Verdict::kNote};
    }));
  }
  for (Finding& finding : findings) finding.host = node.host;
  return findings;
}

}  // namespace pharos::launch
