#include "pharos/nn/moe/dispatcher.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

#include "pharos/base/error.h"
#include "pharos/config/flex_backend.h"
#include "pharos/lens/span.h"
#include "pharos/nn/moe/dispatch/exchange.h"

namespace pharos::nn {
namespace {

using moe::Exchange;
using moe::Freight;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using ExchangePointer = std::shared_ptr<const Exchange>;

struct Holder : torch::CustomClassHolder {
  explicit Holder(ExchangePointer exchange) : exchange(std::move(exchange)) {}
  ExchangePointer exchange;
};

void keep(AutogradContext* context, const ExchangePointer& exchange) {
  context->saved_data["exchange"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(exchange));
}

ExchangePointer kept(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Holder>(context->saved_data["exchange"].toCapsule())->exchange;
}

Freight to_experts(const Exchange& exchange, const Freight& tokens, const std::function<void()>& beside) {
  PHAROS_SPAN(span, lens::Group::kLayer, "megatron.moe.dispatch");
  return exchange.to_experts(tokens, beside);
}

Freight to_tokens(const Exchange& exchange, const Freight& rows) {
  PHAROS_SPAN(span, lens::Group::kLayer, "megatron.moe.combine");
  return exchange.to_tokens(rows);
}

// Hidden states and probabilities travel in one node of the graph, so that the backward pass, too, makes its calls into
// communication in one order on all ranks.
struct Dispatch : torch::autograd::Function<Dispatch> {
  static variable_list forward(AutogradContext* context, const at::Tensor& tokens, const at::Tensor& probabilities,
                               const ExchangePointer* exchange, const std::function<void()>* beside) {
    keep(context, *exchange);
    auto rows = to_experts(**exchange, {tokens.detach(), probabilities.detach()}, *beside);
    return {std::move(rows.hidden), std::move(rows.probabilities)};
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto tokens = to_tokens(*kept(context), {gradients[0], gradients[1]});
    return {std::move(tokens.hidden), std::move(tokens.probabilities), {}, {}};
  }
};

struct Combine : torch::autograd::Function<Combine> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const ExchangePointer* exchange) {
    keep(context, *exchange);
    return to_tokens(**exchange, {rows.detach(), {}}).hidden;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {to_experts(*kept(context), {gradients[0], {}}, {}).hidden, {}};
  }
};

class ExchangeDispatcher : public Dispatcher {
 public:
  ExchangeDispatcher(moe::ExchangeFunction make_exchange, const DispatchOptions& options,
                     const ExpertParallel& parallel)
      : make_exchange_(make_exchange), options_(options), parallel_(parallel) {}

  at::Tensor run(const at::Tensor& tokens, const Routing& routing, std::optional<std::int64_t> rows_per_expert,
                 const ExpertFunction& experts, const std::function<void()>& beside) const override {
    PHAROS_CHECK(routing.experts.dim() == 2 && routing.experts.size(0) == tokens.size(0) &&
                     routing.experts.size(1) == options_.topk,
                 "routing of [tokens, topk] wanted");
    const ExchangePointer exchange = make_exchange_(options_, parallel_, routing.experts, rows_per_expert);
    // What runs beside has gradients of its own, which a forward function of a node switches off.
    const bool wants_gradients = at::GradMode::is_enabled();
    std::function<void()> beside_with_gradients;
    if (beside) {
      beside_with_gradients = [&beside, wants_gradients] {
        const at::AutoGradMode mode(wants_gradients);
        beside();
      };
    }
    const auto rows = Dispatch::apply(tokens, routing.probabilities, &exchange, &beside_with_gradients);
    return Combine::apply(experts({rows[0], rows[1], exchange->counts()}), &exchange);
  }

 private:
  moe::ExchangeFunction make_exchange_;
  DispatchOptions options_;
  ExpertParallel parallel_;
};

moe::ExchangeFunction exchange_of(config::TokenDispatcher type, config::FlexBackend backend) {
  switch (type) {
    case config::TokenDispatcher::kAllGather:
      return moe::exchange_by_all_gather;
    case config::TokenDispatcher::kAllToAll:
      return moe::exchange_by_all_to_all;
    case config::TokenDispatcher::kFlex:
      break;
  }
  const config::FlexBackendProblem problem = config::flex_backend_problem(backend);
  if (!problem.empty())
    throw base::UserError({.what = problem.what, .where = "model.moe_flex_dispatcher_backend", .fix = problem.fix});
  return moe::exchange_natively;
}

}  // namespace

std::unique_ptr<Dispatcher> make_dispatcher(config::TokenDispatcher type, config::FlexBackend backend,
                                            const DispatchOptions& options, const ExpertParallel& parallel) {
  auto make_exchange = exchange_of(type, backend);
  PHAROS_CHECK(options.num_experts % parallel.expert_size() == 0, "as many experts on every rank wanted");
  if (parallel.expert_size() * parallel.tensor_size() == 1) {
    make_exchange = moe::exchange_locally;
  } else {
    PHAROS_CHECK(parallel.both != nullptr && parallel.both->size() == parallel.expert_size() * parallel.tensor_size(),
                 "a group of all ranks of ETP × EP wanted");
  }
  return std::make_unique<ExchangeDispatcher>(make_exchange, options, parallel);
}

}  // namespace pharos::nn
