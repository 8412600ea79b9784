"""Writes the 27M model of the benchmarks as a Hugging Face folder with random weights.

    python bench/peers/write_llama_27m.py FOLDER
"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    torch.manual_seed(1234)
    config = LlamaConfig(
        num_hidden_layers=6,
        hidden_size=512,
        num_attention_heads=8,
        num_key_value_heads=8,
        intermediate_size=1376,
        vocab_size=8192,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        rms_norm_eps=1e-5,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
