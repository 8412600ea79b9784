"""`pharos launch --k8s --dry-run`: what it writes fits the schemas of PyTorchJob and JobSet (tests/data/kubernetes)."""

import copy
import json
import pathlib
import subprocess
import unittest

import jsonschema
import yaml
from pharos_program import PROGRAM

DATA = pathlib.Path(__file__).resolve().parent.parent / "data/kubernetes"
KINDS = {"pytorchjob": "PyTorchJob", "jobset": "JobSet"}


def validator(kind):
    schema = json.loads((DATA / f"{kind}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


DEFAULTS = {"--image": "registry.example/pharos:1", "--mounts": "/fsx:/fsx", "--run-dir": "/fsx/runs/a", "--nodes": "2",
            "--gpus-per-node": "2", "--profile": "tcp"}


def launch(kind, *words, recipe="deepseek_v2_lite_tiny"):
    options = [word for name, value in DEFAULTS.items() if name not in words for word in (name, value)]
    return subprocess.run([PROGRAM, "launch", recipe, "--k8s", kind, "--dry-run", *options, *words], capture_output=True, text=True,
                          timeout=60, check=False)


def paths(node, path=()):
    """The path of every mapping in a manifest."""
    if isinstance(node, dict):
        yield path
        for key, value in node.items():
            yield from paths(value, (*path, key))
    if isinstance(node, list):
        for index, value in enumerate(node):
            yield from paths(value, (*path, index))


FREE_KEYS = {"labels", "annotations", "matchLabels", "nodeSelector", "limits", "requests", "pytorchReplicaSpecs"}


class KubernetesTest(unittest.TestCase):
    def manifest(self, kind, *words):
        result = launch(kind, *words)
        self.assertEqual(result.returncode, 0, result.stderr)
        return yaml.safe_load(result.stdout)

    def test_manifests_fit_the_schema(self):
        cases = [
            (),
            ("--nodes", "1"),
            ("--profile", "efa", "--k8s-efa", "32", "dist.device=cuda"),
            ("--mounts", "pvc/shared:/fsx,/data:/data:ro", "--k8s-namespace", "train", "--k8s-shared-memory", "64Gi"),
            ("--k8s-node-selector", "node.kubernetes.io/instance-type=p5.48xlarge"),
            ("--job-name", "Ünï_" + "x" * 200),
            ("++env_vars.ODD='a: \"b\" $(c) `d` é'",),
        ]
        for kind, name in KINDS.items():
            for words in cases:
                with self.subTest(kind=kind, words=words):
                    manifest = self.manifest(kind, *words)
                    self.assertEqual(manifest["kind"], name)
                    validator(kind).validate(manifest)

    def test_a_misspelt_field_does_not_fit(self):
        for kind in KINDS:
            manifest, check = self.manifest(kind), validator(kind)
            for path in paths(manifest):
                if path and path[-1] in FREE_KEYS:
                    continue
                with self.subTest(kind=kind, path=path):
                    broken = copy.deepcopy(manifest)
                    place = broken
                    for key in path:
                        place = place[key]
                    place["misspelt"] = 1
                    self.assertFalse(check.is_valid(broken))

    def test_wrong_types_and_missing_parts_do_not_fit(self):
        def change(manifest, kind):
            spec = manifest["spec"]
            if kind == "pytorchjob":
                return spec["pytorchReplicaSpecs"]["Master"]
            return spec["replicatedJobs"][0]

        for kind in KINDS:
            manifest, check = self.manifest(kind), validator(kind)
            for key, value in {"replicas": "two", "template": []}.items():
                broken = copy.deepcopy(manifest)
                change(broken, kind)[key] = value
                self.assertFalse(check.is_valid(broken), (kind, key))
            broken = copy.deepcopy(manifest)
            del broken["spec"]
            self.assertFalse(check.is_valid(broken))

    def test_weights_that_only_the_nodes_see(self):
        result = launch("pytorchjob", "hf_path=/fsx/w", "train.global_batch_size=64", recipe="deepseek_v2_lite_pretrain")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("not checked: model.hf_path = /fsx/w", result.stderr)

    def test_what_cannot_work_is_refused(self):
        self.assertIn("kubectl apply", subprocess.run([PROGRAM, "launch", "quickstart", "--k8s"], capture_output=True, text=True, timeout=60,
                                                      check=False).stderr)
        cases = {
            ("--mounts", ".:/fsx"): "Cannot mount '.:/fsx' in a pod",
            ("--run-dir", "/tmp/runs"): "is in no mount",
            ("--profile", "efa", "dist.device=cuda"): "number of EFA devices",
            ("--nsys",): "--nsys",
            ("--partition", "p"): "--partition",
            ("--k8s-node-selector", "p5"): "no label of a node",
            ("--k8s-node-selector", "a=1", "--k8s-node-selector", "a=2"): "given twice",
            ("--k8s-max-restarts", "5"): "no effect on a PyTorchJob",
            ("--k8s-efa", "4"): "4 EFA devices are asked for",
            ("--k8s-namespace", "Train"): "no name of a namespace",
            ("--mounts", "/a:/fsx,/b:/fsx"): "Two mounts are at /fsx",
            ("--env", "RANK"): "cannot be passed on",
            ("++env_vars.RANK=2",): "env_vars.RANK = 2 cannot be set",
            ("no.such=1",): "no.such",
            ("model.hf_path=/data/w",): "Add the mount /data/w:/data/w",
            ("--mounts", "/shared:/fsx", "model.hf_path=/shared/w"): "write model.hf_path=/fsx/w",
            ("dataset.data_path=[data/corpus]",): "give an absolute path in a mount",
        }
        for words, message in cases.items():
            with self.subTest(words=words):
                result = launch("pytorchjob", *words)
                self.assertEqual(result.returncode, 2, result.stdout)
                self.assertIn(message, result.stderr)
                self.assertEqual(result.stdout, "")


if __name__ == "__main__":
    unittest.main()
