"""tools/check_layers fails on each kind of made-up violation, names its file and line, and accepts what is allowed."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().parent.parent.parent / "tools" / "check_layers"

# file, text, line that must be reported (None: allowed)
CASES = [
    ("pharos/nn/a.cc", '#include "pharos/nn/b.h"\n#include "pharos/base/c.h"\n', None),
    ("pharos/nn/a.cc", '#include "pharos/base/c.h"\n#include "pharos/model/b.h"\n', 2),
    ("pharos/config/deep/a.h", '#include "pharos/train/loop.h"\n', 1),
    ("pharos/nn/a_test.cc", '#include "pharos/optim/adam.h"\n', 1),
    ("pharos/nn/a.cc", '#include "pharos/nowhere/b.h"\n', 1),
    ("pharos/cli/main.cc", '#include "pharos/train/loop.h"\n', None),
    ("pharos/nn/a.h", "#include <ATen/ATen.h>\n", None),
    ("pharos/base/a.cc", "#include <torch/torch.h>\n", 1),
    ("pharos/lens/a.h", "\n  #  include <ATen/ATen.h>\n", 2),
    ("pharos/config/a.cc", "#include <c10/util/Exception.h>\n", 1),
    ("pharos/launch/a.cc", '#include "caffe2/core.h"\n', 1),
    ("pharos/base/a.cc", "#include <fmt/format.h>\n", None),
    ("pharos/base/a.h", "#include <fmt/format.h>\n", 1),
    ("pharos/base/a.cc", '// #include "pharos/train/loop.h"\n', None),
    ("pharos/stray/a.cc", "int stray;\n", 1),
    ("pharos/nn/CMakeLists.txt", "pharos_module(nn TORCH DEPENDS base tensor LIBRARIES fmt)\n", None),
    ("pharos/nn/CMakeLists.txt", "\npharos_module(nn TORCH DEPENDS base model LIBRARIES fmt)\n", 2),
]


def run(root):
    return subprocess.run([sys.executable, CHECK, "--root", root], capture_output=True, text=True, check=False)


class CheckLayers(unittest.TestCase):
    def test_cases(self):
        for name, text, line in CASES:
            with self.subTest(file=name, text=text), tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True)
                path.write_text(text)
                result = run(folder)
                if line is None:
                    self.assertEqual((result.returncode, result.stdout), (0, ""))
                else:
                    self.assertEqual(result.returncode, 1)
                    self.assertTrue(result.stdout.startswith(f"{name}:{line}: "), result.stdout)

    def test_all_violations_are_listed(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("base", "comm"):
                path = pathlib.Path(folder, "pharos", name, "a.cc")
                path.parent.mkdir(parents=True)
                path.write_text('#include "pharos/cli/x.h"\n#include "pharos/train/y.h"\n')
            self.assertEqual(len(run(folder).stdout.splitlines()), 4)


if __name__ == "__main__":
    unittest.main()
