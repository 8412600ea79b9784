"""Tokens per second of generation with KV cache on the 27M model: pharos against transformers, same weights, greedy.

Interleaved; each side reports its own time from the prompt to the last token, model loaded. The tokens must agree.
"""

import sys
import tempfile

import common

ROUNDS, NUM_TOKENS = 3, 200
PROMPT_IDS = ",".join(str(37 * position % 8192) for position in range(32))


def measure():
    ours, theirs, agreeing = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        common.run(sys.executable, "-W", "ignore", common.ROOT / "bench/peers/write_llama_27m.py", folder)
        options = ("--prompt-ids", PROMPT_IDS, "--max-tokens", NUM_TOKENS)
        for _ in range(ROUNDS):
            transformers = common.last_json(
                common.run(
                    sys.executable, "-W", "ignore", common.ROOT / "bench/peers/generate_transformers.py", folder, *options,
                    "--threads", common.THREADS,
                ).output
            )
            pharos = common.last_json(common.run(common.PHAROS, "generate", folder, *options, "--temperature", 0, "--json").output)
            theirs.append(transformers["tokens_per_second"])
            ours.append(pharos["tokens_per_second"])
            pairs = list(zip(pharos["tokens"], transformers["tokens"], strict=True))
            agreeing.append(next((i for i, (left, right) in enumerate(pairs) if left != right), len(pairs)))
    rows = [
        ("transformers generate", f"{common.median(theirs):.1f} tokens/s"),
        ("pharos generate", f"{common.median(ours):.1f} tokens/s"),
        ("tokens equal from the start", f"{min(agreeing)} of {NUM_TOKENS}"),
    ]
    bounds = [common.Bound("tokens/s, pharos / transformers", common.median(ours) / common.median(theirs), 1.0, at_most=False)]
    details = {"pharos_tokens_per_second": ours, "transformers_tokens_per_second": theirs, "tokens_equal": agreeing}
    return common.report("generation", rows, bounds, details)


if __name__ == "__main__":
    sys.exit(0 if measure() else 1)
