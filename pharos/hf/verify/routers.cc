// Decisions of routers: what a mixture-of-experts layer was given and what it chose, seen by a dispatcher in between.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "pharos/hf/verify/session.h"
#include "pharos/nn/moe/moe.h"

namespace pharos::hf {
namespace {

constexpr const char* kAbsolute = "absolute";

/// Passes everything on to the layer's own dispatcher.
class WatchingDispatcher : public nn::Dispatcher {
 public:
  using Watch = std::function<void(const at::Tensor& tokens, const nn::Routing& routing)>;
  WatchingDispatcher(std::unique_ptr<nn::Dispatcher> own, Watch watch)
      : own_(std::move(own)), watch_(std::move(watch)) {}

  at::Tensor run(const at::Tensor& tokens, const nn::Routing& routing, std::optional<std::int64_t> rows_per_expert,
                 const nn::ExpertFunction& experts, const std::function<void()>& beside) const override {
    watch_(tokens, routing);
    return own_->run(tokens, routing, rows_per_expert, experts, beside);
  }
  std::unique_ptr<nn::Dispatcher> release() { return std::move(own_); }

 private:
  std::unique_ptr<nn::Dispatcher> own_;
  Watch watch_;
};

}  // namespace

void VerifySession::compare_routing(std::int64_t layer, const nn::Router& router, const at::Tensor& tokens,
                                    const nn::Routing& routing) {
  const std::string name = "router." + std::to_string(layer);
  if (oracle_.tensors.find(name + ".logits") == nullptr) return;
  const std::int64_t rows = tokens.size(0), topk = routing.experts.size(1);
  at::Tensor logits = at::linear(tokens.to(at::kFloat), router.weight.data.to(at::kFloat));
  if (router.bias) logits = logits + router.bias->data.to(at::kFloat);
  const at::Tensor reference = expected(name + ".logits", {rows, router.options.num_experts});
  add(name + ".logits", (logits - reference).abs().max().item<double>(),
      tolerances_.router_logits * std::max(1.0, reference.abs().max().item<double>() / 5), kAbsolute);
  const auto [experts, order] = routing.experts.sort(1);
  const auto* index = oracle_.tensors.find(name + ".topk_index");
  if (index == nullptr || index->shape != std::vector<std::int64_t>{rows, topk})
    return add(name + ".topk_index", std::nan(""), 0, "tokens");
  const at::Tensor is_other = (experts != oracle_.tensors.view(name + ".topk_index").to(at::kLong)).any(1);
  add(name + ".topk_index", is_other.sum().item<double>(), 0, "tokens");
  // The weights of tokens that went elsewhere say nothing more.
  at::Tensor difference =
      (routing.probabilities.to(at::kFloat).gather(1, order) - expected(name + ".topk_weight", {rows, topk})).abs();
  difference.masked_fill_(is_other.unsqueeze(1), 0);
  add(name + ".topk_weight", difference.max().item<double>(), tolerances_.router_weights, kAbsolute);
}

void VerifySession::watch_routers() {
  for (model::TransformerLayer* layer : model_->moe_layers()) {
    nn::Moe& moe = *layer->moe();
    const std::int64_t number = layer->number - 1;
    moe.dispatcher = std::make_unique<WatchingDispatcher>(
        std::move(moe.dispatcher), [this, &moe, number](const at::Tensor& tokens, const nn::Routing& routing) {
          compare_routing(number, moe.router, tokens, routing);
        });
  }
}

void VerifySession::leave_routers() {
  for (model::TransformerLayer* layer : model_->moe_layers()) {
    nn::Moe& moe = *layer->moe();
    moe.dispatcher = static_cast<WatchingDispatcher&>(*moe.dispatcher).release();
  }
}

}  // namespace pharos::hf
