"""What the tests with real processes share: running the program, made-up text, reading what a run wrote."""

import json
import os
import pathlib
import random
import subprocess
import tempfile
import unittest

PROGRAM = os.environ.get("PHAROS", str(pathlib.Path(__file__).resolve().parent.parent / "build/release/pharos"))
RECIPE = pathlib.Path(__file__).resolve().parent / "data/recipes/tiny.yaml"


def run(*arguments, timeout=120, **options):
    """The finished process of `pharos arguments…`; output as text, standard error in it."""
    return subprocess.run(
        [PROGRAM, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
        **options,
    )


def made_up_text(num_words=6000, seed=1):
    """Text with some structure to learn, the same in every run."""
    source = random.Random(seed)
    words = ["".join(source.choice("abcdefgh") for _ in range(source.randint(2, 6))) for _ in range(60)]
    lines = []
    for _ in range(num_words // 8):
        lines.append(" ".join(source.choice(words) for _ in range(8)) + ".")
    return "\n".join(lines) + "\n"


def metrics(folder):
    return [json.loads(line) for line in pathlib.Path(folder, "metrics.jsonl").read_text().splitlines()]


def losses(folder):
    """Loss by step; a step that stands there twice is an error."""
    found = {}
    for line in metrics(folder):
        if "loss" in line:
            assert line["step"] not in found, f"step {line['step']} stands in metrics.jsonl twice"
            found[line["step"]] = line["loss"]
    return found


class ProgramTest(unittest.TestCase):
    """A temporary folder with prepared data, for each test class."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="pharos_test_")
        cls.folder = pathlib.Path(cls.temporary.name)
        text = cls.folder / "text.txt"
        text.write_text(made_up_text())
        cls.data = cls.folder / "tiny"
        finished = run("data", "prepare", text, "--output", cls.data, "--split-on", "line")
        assert finished.returncode == 0, finished.stdout

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def train(self, run_folder, *overrides, **options):
        return run("train", RECIPE, f"data={self.data}", "--run-dir", run_folder, *overrides, **options)

    def assert_exit(self, finished, code):
        self.assertEqual(finished.returncode, code, finished.stdout[-3000:])

    def assert_moves_between_layouts(self, layouts, *shape, tolerance):
        """A run of 30 steps that changes its layout at every resume, against one that never stops. layouts: (ranks, last
        step, overrides); the last one ends at 30. Losses agree within `tolerance`, after step 20 within 1e-5."""
        reference, moving = self.folder / "reference", self.folder / "moving"
        self.assert_exit(self.train(reference, *shape), 0)
        for ranks, end, overrides in layouts:
            command = ["train", RECIPE, f"data={self.data}", *shape, "--run-dir", moving, "--nproc", ranks, *overrides]
            if end < 30:
                command.append(f"train.exit_interval={end}")
            if (moving / "run.yaml").exists():
                command.append("--resume")
            self.assert_exit(run(*command), 0 if end == 30 else 4)
        expected, found = losses(reference), losses(moving)
        self.assertEqual(sorted(found), list(range(1, 31)))
        for step, loss in expected.items():
            self.assertLessEqual(abs(found[step] - loss) / loss, 1e-5 if step > 20 else tolerance, f"step {step}")
        self.assert_exit(run("generate", moving, "--prompt", "ab", "--max-tokens", "5"), 0)
