"""`pharos env show`: profile found and named, provenance, lines that a shell evaluates."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from pharos_program import PROGRAM

CLEAN = {key: value for key, value in os.environ.items()
         if not key.startswith(("NCCL_", "FI_", "OFI_NCCL_", "TORCH_NCCL_", "GLOO_", "CUDA_", "SLURM_")) and key not in
         {"OMP_NUM_THREADS", "LD_LIBRARY_PATH", "RANK", "GPUS_PER_NODE", "TMPDIR", "PYTORCH_CUDA_ALLOC_CONF"}}
RECIPE = "deepseek_v2_lite_pretrain"


def show(*words, **variables):
    return subprocess.run([PROGRAM, "env", "show", *words], capture_output=True, text=True, timeout=60, check=False,
                          env={**CLEAN, **variables})


class EnvironmentTest(unittest.TestCase):
    def json_of(self, *words, **variables):
        result = show(*words, "--json", **variables)
        self.assertEqual(result.returncode, 0, result.stderr)
        plan = json.loads(result.stdout)
        return plan, {variable["name"]: variable for variable in plan["variables"]}

    def test_the_profile_is_found_and_said(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertTrue(show("--sysfs", root).stdout.startswith("Profile tcp: no EFA or InfiniBand device"))
            pathlib.Path(root, "class/infiniband/rdmap0s6").mkdir(parents=True)
            result = show("--sysfs", root)
            self.assertTrue(result.stdout.startswith("Profile efa: 1 EFA device (rdmap0s6)"), result.stdout)
            self.assertIn("FI_PROVIDER=efa\n  profile efa: ", result.stdout)
        self.assertTrue(show("--profile", "ib").stdout.startswith("Profile ib: named by --profile\n"))

    def test_recipe_and_user_overrule_and_are_named(self):
        plan, variables = self.json_of("--profile", "efa", RECIPE, "dist.device=cuda", "++env_vars.NCCL_BUFFSIZE=4194304", "--nodes", "1",
                                       NCCL_DEBUG="TRACE")
        self.assertEqual(variables["NCCL_DEBUG"]["source"], "user")
        self.assertEqual(variables["NCCL_DEBUG"]["overruled"], ["profile efa: NCCL_DEBUG=WARN"])
        self.assertEqual(variables["NCCL_BUFFSIZE"]["origin"], "command line")
        self.assertIn("pretrain_model", variables["TORCH_NCCL_HIGH_PRIORITY"]["origin"])
        self.assertTrue(any("NCCL_DEBUG=TRACE" in warning for warning in plan["warnings"]))

    def test_values_are_shown_as_they_are(self):
        odd = 'a"b \\ $c `d`'
        words = ("--profile", "tcp", RECIPE, "++env_vars.ODD='" + odd + "'")
        _, variables = self.json_of(*words, NCCL_X=odd)
        self.assertEqual((variables["NCCL_X"]["value"], variables["ODD"]["value"]), (odd, odd))
        text = show(*words, NCCL_X=odd).stdout
        for name in ("NCCL_X", "ODD"):
            self.assertIn(f"\n{name}={odd}\n", text)

    def test_a_shipped_recipe_leaves_reductions_in_the_switch_to_the_rule(self):
        for registered, value in (("false", "0"), ("true", "1")):
            plan, variables = self.json_of("--profile", "efa", RECIPE, f"ddp.nccl_ub={registered}")
            self.assertEqual((variables["NCCL_NVLS_ENABLE"]["value"], variables["NCCL_NVLS_ENABLE"]["origin"]), (value, "rule"))
            self.assertFalse([warning for warning in plan["warnings"] if "NCCL_NVLS_ENABLE" in warning])

    def test_exported_lines_are_evaluated(self):
        exported = show("--profile", "efa", RECIPE, "++env_vars.ODD='a \"b\" $c `d`'", "--export", FI_PROVIDER="tcp")
        self.assertEqual(exported.returncode, 0, exported.stderr)
        self.assertIn("warning: FI_PROVIDER=tcp", exported.stderr)
        shell = subprocess.run(["sh", "-eu", "-c", exported.stdout + 'printf "%s|" "$ODD" "$NCCL_NET_PLUGIN" "$CUDA_CACHE_PATH" "${FI_PROVIDER-}"'],
                               capture_output=True, text=True, timeout=60, check=True, env={**CLEAN, "RANK": "3"})
        self.assertEqual(shell.stdout, 'a "b" $c `d`|libnccl-net-ofi.so|/tmp/pharos-cache-rank-3/cuda||')

    def test_what_is_wrong_is_refused(self):
        for words, message in {
            ("--profile", "rocket"): "no network profile 'rocket'",
            (RECIPE, "model.tensor_model_parallel_size=3", "--nodes", "1"): "tensor_model_parallel_size",
            ("no_such_recipe",): "no_such_recipe",
            ("--sysfs", "/nonexistent"): "/nonexistent",
        }.items():
            result = show(*words)
            self.assertEqual(result.returncode, 2, words)
            self.assertIn(message, result.stderr)
        self.assertEqual(show(GPUS_PER_NODE="0").returncode, 2)


if __name__ == "__main__":
    unittest.main()
