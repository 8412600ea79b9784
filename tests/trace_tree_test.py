"""The spans of a real `pharos train` as a receiver sees them: which span stands under which, how often, with what attributes
and links (megatron-telemetry.md sections 1.1 to 1.8), for each preset of span groups.

PHAROS names the program. Needs the packages of requirements-test.txt (.venv-test, made by `tools/bootstrap test`).
"""

import collections
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "receivers"))
from otlp_sink import Sink
from pharos_program import PROGRAM, RECIPE, ProgramTest, losses

# Span, group, G where it is a goodput span, how often (see Facts), attributes beside that mark. Indented below its parent;
# spans without indentation are roots.
TREE = """
megatron.startup                              job              G  once                 megatron.model_type:string
  megatron.startup.imports                    job              G  once
  megatron.startup.arg_parse                  job              G  once
  megatron.startup.inprocess_setup            job              G  once
  megatron.startup.in_job_setup               job              G  once
  megatron.startup.initialize_megatron        job              G  once
  megatron.startup.jit_fusion_options         job              G  once
  megatron.startup.dataloader                 data_loading     G  once
    build_low_level_dataset                   trace_region     -  once
    build_document_index                      trace_region     -  data_sets
  megatron.startup.model_init                 model_init       G  once
    megatron.checkpoint.load                  load_checkpoint  G  loads
      megatron.checkpoint.load.io_read        load_checkpoint  G  loads
        dcp.read_metadata                     trace_region     -  loads
      dcp.read_data                           trace_region     -  loads
megatron.train                                job              G  blocks
  megatron.checkpoint.ft_heartbeat            checkpoint       G  passes
  megatron.checkpoint.save.finalize           checkpoint       G  passes
  megatron.train.first_iteration              first_iteration  G  once                 megatron.iteration:int
    megatron.train.iteration                  step             G  once                 megatron.iteration:int megatron.skipped:bool
      megatron.train.iteration.forward_backward forward_backward - once                num_microbatches:int
        megatron.microbatch.forward           microbatch       -  first_microbatches
          megatron.dataloader.wait            data_loading     -  first_microbatches
          megatron.layer.forward              layer            -  first_layers         megatron.layer_number:int
            megatron.layer.self_attention     layer            -  first_layers
            megatron.layer.mlp                layer            -  first_layers
        megatron.microbatch.backward          microbatch       -  first_microbatches
      megatron.train.iteration.optimizer      optimizer        -  once                 megatron.update_successful:bool
  megatron.train.iteration                    step             G  later_passes         megatron.iteration:int megatron.skipped:bool
    megatron.train.iteration.forward_backward forward_backward -  later_passes         num_microbatches:int
      megatron.microbatch.forward             microbatch       -  later_microbatches
        megatron.dataloader.wait              data_loading     -  later_microbatches
        megatron.layer.forward                layer            -  later_layers         megatron.layer_number:int
          megatron.layer.self_attention       layer            -  later_layers
          megatron.layer.mlp                  layer            -  later_layers
      megatron.microbatch.backward            microbatch       -  later_microbatches
    megatron.train.iteration.optimizer        optimizer        -  later_passes         megatron.update_successful:bool
  megatron.train.iteration_report             step             G  passes
    megatron.train.params_norm                step             G  passes
    megatron.train.log                        step             G  passes
  megatron.evaluate                           evaluate         -  loop_evaluations     megatron.eval_iters:int
    megatron.evaluate.step                    evaluate         -  loop_evaluation_steps megatron.eval_iteration:int
      megatron.microbatch.forward             microbatch       -  loop_evaluation_microbatches
        megatron.layer.forward                layer            -  loop_evaluation_layers megatron.layer_number:int
          megatron.layer.self_attention       layer            -  loop_evaluation_layers
          megatron.layer.mlp                  layer            -  loop_evaluation_layers
  megatron.checkpoint.exposed_save            checkpoint       G  saves                megatron.iteration:int
    megatron.checkpoint.save                  checkpoint       G  saves                megatron.iteration:int
      megatron.checkpoint.save.state_dict     checkpoint       G  saves
        generate_state_dict                   trace_region     -  saves
      megatron.checkpoint.save.io_write       checkpoint       G  saves
        dcp.write_data                        trace_region     -  saves
        dcp.finish                            trace_region     -  saves
    megatron.checkpoint.report_memory         checkpoint       G  reported_saves
    megatron.checkpoint.timers_log            step             G  saves
  megatron.checkpoint.exit_finalize           checkpoint       G  once
megatron.evaluate                             evaluate         -  end_evaluations      megatron.eval_iters:int
  megatron.evaluate.step                      evaluate         -  end_evaluation_steps megatron.eval_iteration:int
    megatron.microbatch.forward               microbatch       -  end_evaluation_microbatches
      megatron.layer.forward                  layer            -  end_evaluation_layers megatron.layer_number:int
        megatron.layer.self_attention         layer            -  end_evaluation_layers
        megatron.layer.mlp                    layer            -  end_evaluation_layers
"""

DEFAULT = {"job", "checkpoint", "evaluate", "first_iteration", "inference"}
PER_STEP = DEFAULT | {"model_init", "load_checkpoint", "step", "forward_backward", "optimizer", "communication", "data_loading"}
PRESETS = {
    "default": DEFAULT,
    "per_step": PER_STEP,
    "all": PER_STEP | {"microbatch", "layer", "activation_offload", "trace_region"},
}


# ---------------------------------------------------------------- what is expected
@dataclasses.dataclass
class Node:
    name: str
    group: str
    is_goodput: bool
    count: str
    attributes: dict
    parent: "Node | None"

    def enabled_parent(self, groups):
        """Name of the nearest ancestor whose group is on; "" for none (section 1.1, "Parent rule")."""
        node = self.parent
        while node is not None and node.group not in groups:
            node = node.parent
        return node.name if node else ""


def read_tree(text):
    nodes, open_nodes = [], []
    for line in text.strip().splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name, group, mark, count, *attributes = line.split()
        parent = open_nodes[depth - 1] if depth else None
        node = Node(name, group, mark == "G", count, dict(item.rsplit(":", 1) for item in attributes), parent)
        open_nodes[depth:] = [node]
        nodes.append(node)
    return nodes


NODES = read_tree(TREE)
NUM_LAYERS = 2
SAVE_INTERVAL = 5
EVAL_INTERVAL = 10
EVAL_ITERS = 2
EVAL_MICROBATCHES = 4  # 8 samples in microbatches of 2


class Facts:
    """How often things happen in a run of tests/data/recipes/tiny.yaml from step `start` to step `stop`."""

    def __init__(self, start, stop, *, leaves_early=False, evaluates=True):
        steps = range(start + 1, stop + 1)
        # Who leaves the loop early saves first, unless that step is saved already.
        saves = [step for step in steps if step % SAVE_INTERVAL == 0 or (leaves_early and step == stop)]
        first = self.microbatches(start)
        later = sum(self.microbatches(step) for step in range(start + 1, stop))
        in_loop = sum(step % EVAL_INTERVAL == 0 for step in steps) if evaluates else 0
        at_end = 2 if evaluates and not leaves_early else 0  # validation and test set
        self.counts = {
            "once": 1,
            "data_sets": 3 if evaluates else 1,
            "loads": int(start > 0),
            "passes": len(steps),
            "later_passes": len(steps) - 1,
            "blocks": -(-len(steps) // SAVE_INTERVAL),
            "saves": len(saves),
            "reported_saves": min(3, len(saves)),
            "first_microbatches": first,
            "first_layers": first * NUM_LAYERS,
            "later_microbatches": later,
            "later_layers": later * NUM_LAYERS,
        }
        for prefix, number in (("loop", in_loop), ("end", at_end)):
            forwards = number * EVAL_ITERS * EVAL_MICROBATCHES
            self.counts |= {
                f"{prefix}_evaluations": number,
                f"{prefix}_evaluation_steps": number * EVAL_ITERS,
                f"{prefix}_evaluation_microbatches": forwards,
                f"{prefix}_evaluation_layers": forwards * NUM_LAYERS,
            }
        self.start, self.stop, self.saves = start, stop, saves

    @staticmethod
    def microbatches(step):
        """Of the step after `step` steps: the batch grows from 4 by 2 at 30 and at 60 samples, to 8."""
        return 2 if step < 8 else 3 if step < 13 else 4

    def expected(self, groups):
        """Number of spans by (name, name of the parent)."""
        expected = collections.Counter()
        for node in NODES:
            if node.group in groups:
                expected[node.name, node.enabled_parent(groups)] += self.counts[node.count]
        return +expected


# ---------------------------------------------------------------- what came
class Spans:
    def __init__(self, sink):
        self.all = [
            span
            for row in sink.requests("traces")
            for part in row["request"]["resourceSpans"]
            for scope in part["scopeSpans"]
            for span in scope["spans"]
        ]
        self.by_id = {span["spanId"]: span for span in self.all}
        for span in self.all:
            span["values"] = {item["key"]: next(iter(item["value"].items())) for item in span.get("attributes", [])}
            span["parent"] = self.by_id[span["parentSpanId"]] if span.get("parentSpanId") else None
            span["start"], span["end"] = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])

    def named(self, name):
        return sorted((span for span in self.all if span["name"] == name), key=lambda span: span["start"])

    def counted(self):
        return collections.Counter((span["name"], span["parent"]["name"] if span["parent"] else "") for span in self.all)

    def integers(self, name, key):
        return [int(span["values"][key][1]) for span in self.named(name)]


class TraceTreeTest(ProgramTest):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.sink = Sink(http_port=0, grpc_port=0)
        cls.sink.start()
        cls.addClassCleanup(cls.sink.stop)

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not re.match("(OTEL|NEMO_LENS|MEGATRON_OTEL|SLURM|LENS|NVRX)_", name)}
        return kept | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.sink.grpc_port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        }

    def overrides(self, preset):
        return ["telemetry.enabled=true", f"telemetry.span_groups='{preset}'", "logger.log_params_norm=true"]

    def traced(self, folder, preset, *overrides, exit_code=0):
        self.sink.reset()
        self.assert_exit(self.train(folder, *self.overrides(preset), *overrides, env=self.environment()), exit_code)
        return Spans(self.sink)

    def interrupted(self, folder, preset, *overrides, wait_for):
        """A run that gets SIGTERM once it has done `wait_for` steps. Returns its spans and its exit status."""
        self.sink.reset()
        started = subprocess.Popen(
            [PROGRAM, "train", str(RECIPE), f"data={self.data}", "--run-dir", str(folder), "train.train_iters=100000"]
            + [*self.overrides(preset), *overrides],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment(),
        )
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and started.poll() is None and self.num_steps(folder) < wait_for:
                time.sleep(0.01)
            started.send_signal(signal.SIGTERM)
            self.output = started.communicate(timeout=60)[0]
        finally:
            started.kill()
        return Spans(self.sink), started.returncode

    def num_steps(self, folder):
        path = pathlib.Path(folder, "metrics.jsonl")
        return len(re.findall(r'"loss":', path.read_text())) if path.exists() else 0

    def assert_tree(self, spans, facts, preset):
        groups = PRESETS[preset]
        self.assertEqual(self.sink.findings(), [])
        self.assert_counts(spans, facts, groups)
        nodes = {}
        for node in NODES:
            known = nodes.setdefault(node.name, node)
            self.assertEqual((known.group, known.is_goodput, known.attributes), (node.group, node.is_goodput, node.attributes))
        for span in spans.all:
            node = nodes[span["name"]]
            mark = {"is_goodput_span": "bool"} if node.is_goodput else {}
            found = {key: kind.removesuffix("Value") for key, (kind, _) in span["values"].items()}
            self.assertEqual(found, mark | node.attributes, span["name"])
            self.assertTrue(span["values"].get("is_goodput_span", ("", True))[1])
            self.assertEqual((span["kind"], span.get("status", {}), span.get("events", [])), (1, {}, []), span["name"])
            if span["parent"]:
                self.assertEqual(span["traceId"], span["parent"]["traceId"])
                self.assertLessEqual(span["parent"]["start"], span["start"], span["name"])
                self.assertGreaterEqual(span["parent"]["end"], span["end"], span["name"])
        roots = [span for span in spans.all if span["parent"] is None]
        self.assertEqual(len({span["traceId"] for span in spans.all}), len(roots))
        self.assert_chain(spans)
        self.assert_values(spans, facts, groups)

    def assert_counts(self, spans, facts, groups):
        found, expected = spans.counted(), facts.expected(groups)
        wrong = {key: (found[key], expected[key]) for key in found | expected if found[key] != expected[key]}
        self.assertEqual(wrong, {}, "(span, parent): (found, expected)")

    def assert_chain(self, spans):
        """megatron.train links to the block before, the first one to megatron.startup; nothing else has links."""
        chain = spans.named("megatron.startup") + spans.named("megatron.train")
        for before, block in zip(chain, chain[1:]):
            links = [(link["traceId"], link["spanId"], link["flags"]) for link in block["links"]]
            self.assertEqual(links, [(before["traceId"], before["spanId"], 0x100)])
            self.assertLessEqual(before["end"], block["start"])
        self.assertEqual({span["name"] for span in spans.all if span.get("links")}, {"megatron.train"})

    def assert_values(self, spans, facts, groups):
        self.assertEqual(spans.named("megatron.startup")[0]["values"]["megatron.model_type"][1], "ModelType.encoder_or_decoder")
        self.assertEqual(spans.integers("megatron.train.first_iteration", "megatron.iteration"), [facts.start])
        for name in ("megatron.checkpoint.exposed_save", "megatron.checkpoint.save"):
            self.assertEqual(spans.integers(name, "megatron.iteration"), facts.saves)
        num_evaluations = facts.counts["loop_evaluations"] + facts.counts["end_evaluations"]
        self.assertEqual(spans.integers("megatron.evaluate", "megatron.eval_iters"), [EVAL_ITERS] * num_evaluations)
        steps = spans.integers("megatron.evaluate.step", "megatron.eval_iteration")
        self.assertEqual(steps, [*range(1, EVAL_ITERS + 1)] * num_evaluations)
        if "step" in groups:
            self.assert_steps(spans, facts)
        if "layer" in groups:
            self.assertEqual(set(spans.integers("megatron.layer.forward", "megatron.layer_number")), {1, 2})

    def assert_steps(self, spans, facts):
        done = range(facts.start, facts.stop)
        iterations = spans.named("megatron.train.iteration")
        self.assertEqual(spans.integers("megatron.train.iteration", "megatron.iteration"), [*done])
        self.assertEqual({span["values"]["megatron.skipped"][1] for span in iterations}, {False})
        successes = {span["values"]["megatron.update_successful"][1] for span in spans.named("megatron.train.iteration.optimizer")}
        self.assertEqual(successes, {True})
        found = spans.integers("megatron.train.iteration.forward_backward", "num_microbatches")
        self.assertEqual(found, [Facts.microbatches(step) for step in done])
        blocks = [span["traceId"] for span in spans.named("megatron.train")]
        self.assertEqual([span["traceId"] for span in iterations], [blocks[k // SAVE_INTERVAL] for k in range(len(done))])


class WholeRun(TraceTreeTest):
    def test_presets(self):
        for preset in PRESETS:
            with self.subTest(preset):
                self.assert_tree(self.traced(self.folder / preset, preset), Facts(0, 30), preset)

    def test_start_up_phases_have_no_gaps(self):
        spans = self.traced(self.folder / "startup", "default")
        root = spans.named("megatron.startup")[0]
        phases = sorted((span for span in spans.all if span["parent"] is root), key=lambda span: (span["start"], span["end"]))
        self.assertEqual(phases[0]["start"], root["start"])
        for before, after in zip(phases, phases[1:]):
            self.assertEqual(before["end"], after["start"], after["name"])

    def test_groups_by_name(self):
        """A set that is no preset: children of what is off go to the next ancestor that is on."""
        spans = self.traced(self.folder / "names", "layer,evaluate")
        self.assert_counts(spans, Facts(0, 30), {"layer", "evaluate"})


class InterruptedRun(TraceTreeTest):
    def test_resumed_run(self):
        for preset in PRESETS:
            with self.subTest(preset):
                folder = self.folder / f"resumed_{preset}"
                first = self.traced(folder, preset, "train.exit_interval=12", exit_code=4)
                self.assert_tree(first, Facts(0, 12, leaves_early=True), preset)
                second = self.traced(folder, preset, "--resume")
                self.assert_tree(second, Facts(12, 30), preset)
                ids = [{span["traceId"] for span in spans.all} for spans in (first, second)]
                self.assertEqual(ids[0] & ids[1], set())

    def test_signal_in_good_order(self):
        """train.exit_signal_handler: the step is finished, saved, and all spans end by themselves."""
        for preset in ("default", "all"):
            with self.subTest(preset):
                folder = self.folder / f"signalled_{preset}"
                spans, status = self.interrupted(folder, preset, "validation.eval_iters=0", wait_for=7)
                self.assertEqual(status, 4, self.output)
                facts = Facts(0, max(losses(folder)), leaves_early=True, evaluates=False)
                self.assert_tree(spans, facts, preset)

    def test_signal_that_ends_the_process(self):
        """Without that handler: telemetry closes what is open, marked, sends it and lets the signal pass on."""
        folder = self.folder / "terminated"
        spans, status = self.interrupted(
            folder, "per_step", "train.exit_signal_handler=false", "validation.eval_iters=0", wait_for=7
        )
        self.assertEqual(status, -signal.SIGTERM, self.output)
        self.assertEqual(self.sink.findings(), [])
        truncated = [span for span in spans.all if "nemo.span.truncated" in span["values"]]
        last_block = spans.named("megatron.train")[-1]
        self.assertIn(last_block["spanId"], [span["spanId"] for span in truncated])
        for span in truncated:
            self.assertEqual(span["traceId"], last_block["traceId"])
            (event,) = span["events"]
            self.assertEqual(event["name"], "nemo.span.truncated")
            self.assertEqual(span.get("status", {}), {})
        whole = [span for span in spans.all if span not in truncated]
        self.assertEqual([span["name"] for span in whole if span.get("events")], [])
        self.assertGreaterEqual(len(spans.named("megatron.train.iteration")), 7)
        self.assert_chain(spans)


if __name__ == "__main__":
    unittest.main()
