#!/usr/bin/env python3
"""Writes hf_routers.safetensors: what the routers of Hugging Face transformers (5.24.0, torch 2.13.0) choose.

    python make_hf_routers.py hf_routers.safetensors ../hf/{mixtral,deepseek_v2}

Per case: logits [48, experts], topk_index [48, topk] in rising order with topk_weight beside it, weight_grad [48, topk]
and grad_logits = d sum(topk_weight * weight_grad) / d logits; bias [experts] where the router has one. The router's
weight is the identity, so its input is the logits. The settings of the cases are repeated in pharos/nn/moe/choice_test.cc. Of
each fixture FOLDER of the command line what oracle.safetensors has of its routers comes along, as FOLDER/router.N.….
"""

import pathlib
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers.models.deepseek_v2.configuration_deepseek_v2 import DeepseekV2Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.mixtral.configuration_mixtral import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

TOKENS = 48


def deepseek(config, router, **settings):
    sizes = dict(hidden_size=16, num_attention_heads=4, n_routed_experts=16, num_experts_per_tok=4, n_group=4, topk_group=2)
    return router(config(**sizes, **settings))


def qwen3(norm):
    return Qwen3MoeTopKRouter(Qwen3MoeConfig(hidden_size=12, num_experts=12, num_experts_per_tok=3, norm_topk_prob=norm))


def cases():
    v2, v3 = (DeepseekV2Config, DeepseekV2TopkRouter), (DeepseekV3Config, DeepseekV3TopkRouter)
    yield "mixtral", MixtralTopKRouter(MixtralConfig(hidden_size=8, num_local_experts=8, num_experts_per_tok=2))
    yield "qwen3_moe_norm", qwen3(True)
    yield "qwen3_moe_plain", qwen3(False)
    yield "deepseek_v2_groups", deepseek(*v2, topk_method="group_limited_greedy", routed_scaling_factor=16.0)
    yield "deepseek_v3", deepseek(*v3, routed_scaling_factor=2.5, norm_topk_prob=True)
    yield "deepseek_v3_plain", deepseek(*v3, routed_scaling_factor=1.5, norm_topk_prob=False)


def main():
    torch.set_num_threads(1)
    tensors = {}
    for seed, (name, router) in enumerate(cases()):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            router.weight.copy_(torch.eye(router.num_experts))
        if hasattr(router, "e_score_correction_bias"):
            router.e_score_correction_bias.normal_(0, 0.2, generator=generator)
            tensors[f"{name}/bias"] = router.e_score_correction_bias.clone()
        logits = (1.5 * torch.randn(TOKENS, router.num_experts, generator=generator)).requires_grad_()
        _, weights, index = router(logits)
        index, order = index.sort(-1)
        weights = weights.gather(-1, order)
        weight_grad = torch.randn(weights.shape, generator=generator)
        grad = torch.autograd.grad((weights * weight_grad).sum(), logits)[0]
        values = dict(logits=logits, topk_index=index, topk_weight=weights, weight_grad=weight_grad, grad_logits=grad)
        for key, value in values.items():
            tensors[f"{name}/{key}"] = value.detach().contiguous()
    for folder in map(pathlib.Path, sys.argv[2:]):
        with safe_open(folder / "oracle.safetensors", "pt") as file:
            tensors.update({f"{folder.name}/{key}": file.get_tensor(key) for key in file.keys() if key.startswith("router.")})
    save_file(tensors, sys.argv[1])


if __name__ == "__main__":
    main()
