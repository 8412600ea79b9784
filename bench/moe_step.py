"""One training step of deepseek_v2_lite_tiny on one rank: pharos against transformers with the very same weights (exported).

Interleaved runs; the first five steps of each run are left out, and the ratio is the median of those of the rounds: a busy machine slows
both sides of a round. The bound is against the eager model (a loop over experts, attention
written out); how transformers does with grouped products and fused attention is shown beside it.
"""

import pathlib
import sys
import tempfile

import common

RECIPE, ROUNDS, STEPS, WARM_UP = "deepseek_v2_lite_tiny", 7, 40, 5
BATCH, TOKENS = 4, 256
PEERS = {"eager": ("eager", "eager"), "grouped_mm, sdpa": ("grouped_mm", "sdpa")}


def step_in_transformers(folder, experts, attention):
    words = [sys.executable, "-W", "ignore", common.ROOT / "bench/peers/moe_transformers.py", folder, "--steps", STEPS]
    words += ["--batch", BATCH, "--tokens", TOKENS, "--threads", common.THREADS, "--experts", experts, "--attention", attention]
    result = common.last_json(common.run(*words).output)
    return result["step_time_ms"][WARM_UP:], result["num_parameters"]


def train(folder, *overrides):
    sizes = [f"train.micro_batch_size={BATCH}", f"train.global_batch_size={BATCH}", f"dataset.seq_length={TOKENS}"]
    words = [*sizes, f"train.train_iters={STEPS}", "logger.log_interval=1", "validation.eval_iters=0", *overrides]
    common.run(common.PHAROS, "train", RECIPE, *words, "--run-dir", folder)
    return common.read_metrics(folder)


def measure():
    times = {name: [] for name in ("pharos", *PEERS)}
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        train(folder / "first", f"checkpoint.save_interval={STEPS}")
        checkpoint = folder / "first/checkpoints"
        common.run(common.PHAROS, "hf", "export", checkpoint, folder / "exported")
        for number in range(ROUNDS):
            for name, (experts, attention) in PEERS.items():
                step_times, parameters = step_in_transformers(folder / "exported", experts, attention)
                times[name] += step_times
                if name == "eager":
                    eager = common.median(step_times)
            records = train(folder / f"run_{number}", "checkpoint.save_interval=0")
            own_times = [record["step_time_ms"] for record in records if "step_time_ms" in record][WARM_UP:]
            times["pharos"] += own_times
            ratios.append(eager / common.median(own_times))
    medians = {name: common.median(values) for name, values in times.items()}
    rows = [("parameters", f"{parameters / 1e6:.1f} M"), ("samples x tokens of a step", f"{BATCH} x {TOKENS}")]
    rows += [(name, f"{value:.0f} ms/step") for name, value in medians.items()]
    bounds = [common.Bound("step time, transformers eager / pharos", common.median(ratios), 1.5, at_most=False)]
    return common.report("moe_step", rows, bounds, {"step_time_ms": times, "ratios": ratios})


if __name__ == "__main__":
    sys.exit(0 if measure() else 1)
