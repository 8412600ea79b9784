// How tokens reach the ranks that hold their experts, and come back (bridge-config.md 8.5).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pharos/comm/group.h"
#include "pharos/config/enums.h"
#include "pharos/nn/moe/router.h"

namespace pharos::nn {

/// Ranks between which experts are divided; null: this rank alone. Experts are numbered through: rank r of `expert`
/// holds [r · experts / ranks, (r + 1) · experts / ranks).
struct ExpertParallel {
  comm::Group* expert = nullptr;         ///< EP: whole experts
  comm::Group* expert_tensor = nullptr;  ///< ETP: parts of each expert
  comm::Group* both = nullptr;           ///< ETP × EP, the former varying faster
  std::int64_t expert_size() const { return expert == nullptr ? 1 : expert->size(); }
  std::int64_t expert_rank() const { return expert == nullptr ? 0 : expert->rank(); }
  std::int64_t tensor_size() const { return expert_tensor == nullptr ? 1 : expert_tensor->size(); }
};

struct DispatchOptions {
  std::int64_t num_experts = 0;
  std::int64_t topk = 0;
};

/// What the experts of this rank work on.
struct ExpertRows {
  at::Tensor rows;                   ///< [n, hidden] sorted by local expert, then by where they come from
  at::Tensor probabilities;          ///< [n]
  std::vector<std::int64_t> counts;  ///< rows of each local expert
};

using ExpertFunction = std::function<at::Tensor(const ExpertRows&)>;

class Dispatcher {
 public:
  virtual ~Dispatcher() = default;
  /// tokens: [n, hidden] of this rank -> [n, hidden]: for each token the sum over its experts of their (weighted)
  /// results. With `rows_per_expert` every expert gets exactly that many rows from this rank (choices beyond them have
  /// been dropped from `routing`, missing ones are zero rows); unset: as many as chose it. `experts` is called once.
  /// `beside` (may be empty) is called while tokens are under way to the experts, its results are the caller's affair.
  virtual at::Tensor run(const at::Tensor& tokens, const Routing& routing, std::optional<std::int64_t> rows_per_expert,
                         const ExpertFunction& experts, const std::function<void()>& beside) const = 0;
};

/// On one rank all types are the same. `backend` is that of the flex type; UserError for one that this build lacks
/// (config::flex_backend_problem()).
std::unique_ptr<Dispatcher> make_dispatcher(config::TokenDispatcher type, config::FlexBackend backend,
                                            const DispatchOptions& options, const ExpertParallel& parallel);

}  // namespace pharos::nn
