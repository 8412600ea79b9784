"""One training step on a CUDA device: pharos against eager PyTorch with fused AdamW, in one run, interleaved.

The 27M model in fp32, and a model of 1.1 billion parameters in bf16 with fp32 main parameters (PyTorch: autocast). The first
steps of each run are left out. Needs a build with CUDA: PHAROS names the program, PYTHON the Python with the same PyTorch.

    PHAROS=build/cuda/pharos PYTHON=python3 python3 bench/gpu_training_step.py
"""

import os
import pathlib
import sys
import tempfile

import common

PHAROS = os.environ.get("PHAROS", str(common.ROOT / "build/cuda/pharos"))
PYTHON = os.environ.get("PYTHON", sys.executable)
ROUNDS, WARM_UP = 2, 4

# name: (steps, options of llama_27m_torch.py, overrides of the recipe llama_27m)
MODELS = {
    "27M fp32, 8 x 256": (40, [], []),
    "1.1B bf16, 8 x 2048": (
        16,
        "--bf16 --layers 20 --hidden 2048 --heads 16 --feed-forward 5504 --vocabulary 32000 --tokens 2048".split(),
        [
            "mixed_precision=bf16_mixed",
            "model.num_layers=20",
            "model.hidden_size=2048",
            "model.num_attention_heads=16",
            "model.ffn_hidden_size=5504",
            "model.vocab_size=32000",
            "tokenizer.vocab_size=32000",
            "dataset.seq_length=2048",
        ],
    ),
}


def step_in_torch(steps, options):
    command = [PYTHON, "-W", "ignore", common.ROOT / "bench/peers/llama_27m_torch.py", "--steps", steps, "--device", "cuda", *options]
    result = common.last_json(common.run(*command).output)
    return result["step_time_ms"][WARM_UP:], result["num_parameters"]


def step_in_pharos(steps, overrides):
    with tempfile.TemporaryDirectory() as folder:
        run_folder = pathlib.Path(folder, "run")
        common.run(
            PHAROS, "train", "llama_27m", "dist.device=cuda", f"train.train_iters={steps}", *overrides, "--run-dir", run_folder
        )
        records = common.read_metrics(run_folder)
    return [record["step_time_ms"] for record in records if "step_time_ms" in record][WARM_UP:], records


def measure():
    rows, bounds, details = [], [], {}
    for name, (steps, options, overrides) in MODELS.items():
        in_torch, in_pharos = [], []
        for _ in range(ROUNDS):
            times, num_parameters = step_in_torch(steps, options)
            in_torch += times
            times, records = step_in_pharos(steps, overrides)
            in_pharos += times
        medians = common.median(in_torch), common.median(in_pharos)
        tflops = [record["tflops_per_device"] for record in records if "tflops_per_device" in record]
        rows += [
            (f"{name}: PyTorch eager", f"{medians[0]:.1f} ms/step, {num_parameters / 1e6:.0f}M parameters"),
            (f"{name}: pharos", f"{medians[1]:.1f} ms/step, {common.median(tflops):.1f} TFLOP/s"),
        ]
        bounds.append(common.Bound(f"{name}: pharos / PyTorch", medians[1] / medians[0], 1.0))
        details[name] = {"torch_step_time_ms": in_torch, "pharos_step_time_ms": in_pharos, "pharos_tflops": tflops}
    return common.report("gpu_training_step", rows, bounds, details)


if __name__ == "__main__":
    sys.exit(0 if measure() else 1)
