"""Greedy generation with KV cache by transformers; prints one JSON object with tokens per second and the tokens.

    python bench/peers/generate_transformers.py FOLDER --prompt-ids 1,2,3 --max-tokens 200 --threads 2
"""

import argparse
import json
import time

import torch
from transformers import AutoModelForCausalLM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--prompt-ids", required=True)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32).eval()
    prompt = torch.tensor([[int(token) for token in options.prompt_ids.split(",")]])
    mask = torch.ones_like(prompt)

    def generate(num_tokens):
        return model.generate(
            prompt, attention_mask=mask, do_sample=False, min_new_tokens=num_tokens, max_new_tokens=num_tokens, use_cache=True
        )

    with torch.inference_mode():
        generate(8)
        started = time.perf_counter()
        tokens = generate(options.max_tokens)[0, prompt.shape[1] :].tolist()
        seconds = time.perf_counter() - started
    print(json.dumps({"tokens_per_second": len(tokens) / seconds, "tokens": tokens}))


if __name__ == "__main__":
    main()
