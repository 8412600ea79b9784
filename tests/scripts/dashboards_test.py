"""Dashboards, alert rules and collector files: they parse, fit together, and use only series that Pharos sends.

Names of series follow from the names, kinds and units of the metrics by the rules of the collector's Prometheus exporter;
the metrics are those of the table kMetrics, which docs/observability/metrics.md repeats. Needs PyYAML (Debian's python3-yaml, in tools/packages-test.txt).
"""

import json
import pathlib
import re
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OBSERVABILITY = ROOT / "observability"
METRIC_SOURCE = ROOT / "pharos/lens/metrics/training_metrics.cc"
METRIC_TABLE = ROOT / "docs/observability/metrics.md"

# Series of others: Prometheus itself and the collector.
FOREIGN_SERIES = re.compile(r"up|otelcol_\w+|ALERTS")

UNIT_WORDS = {"s": "seconds", "ms": "milliseconds", "By": "bytes", "1": "", "": ""}
WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
PROMQL_WORDS = set(
    "sum by without rate increase histogram_quantile and or unless on ignoring offset count abs vector label_values Inf NaN"
    " group_left group_right bool max min avg timestamp".split()
)


def series_of(name, kind, unit):
    """Series names of a metric, as the collector's Prometheus exporter makes them: dots become underscores, the word of the
    unit is appended unless the name has it already, a counter ends in _total, a histogram has three series."""
    words = [word for word in re.split(r"[^a-zA-Z0-9:]+", name) if word]
    unit_word = "" if unit.startswith("{") else UNIT_WORDS[unit]
    if unit_word and unit_word not in words:
        words.append(unit_word)
    if kind == "counter":
        words = [word for word in words if word != "total"] + ["total"]
    if kind == "gauge" and unit == "1":
        words = [word for word in words if word != "ratio"] + ["ratio"]
    base = "_".join(words)
    return {f"{base}_{end}" for end in ("bucket", "sum", "count")} if kind == "histogram" else {base}


def source_metrics():
    """name → (kind, unit) of the table kMetrics in C++."""
    row = re.compile(r'\{\s*"((?:megatron|gen_ai)[a-z_.]+)",\s*k(?:Observable)?(Gauge|Counter|Histogram),\s*(?:true|false),\s*"([^"]*)",')
    return {name: (kind.lower(), unit) for name, kind, unit in row.findall(METRIC_SOURCE.read_text())}


def documented_metrics():
    """name → (kind, unit, series as written) of docs/observability/metrics.md."""
    row = re.compile(r"^\| `([a-z_.]+)` \| (gauge|counter|histogram) \| (?:`([^`]*)`|–) \| .* \| `([^`]+)` \|$", re.MULTILINE)
    return {name: (kind, unit, series) for name, kind, unit, series in row.findall(METRIC_TABLE.read_text())}


def all_series():
    return set().union(*(series_of(name, kind, unit) for name, (kind, unit) in source_metrics().items()))


def series_in(expression):
    """Names of series in a PromQL expression or a label_values() query."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text)
    text = re.sub(r"(label_values\([^,]+),[^)]*\)", r"\1)", text)
    return {word for word in WORD.findall(re.sub(r"\b\d+(\.\d+)?(e[+-]?\d+)?[a-z]*\b", " ", text)) if word not in PROMQL_WORDS}


def unknown_series(expression, known):
    return {name for name in series_in(expression) if name not in known and not FOREIGN_SERIES.fullmatch(name)}


def load(path):
    return yaml.safe_load((OBSERVABILITY / path).read_text())


def dashboards():
    return {path.name: json.loads(path.read_text()) for path in sorted((OBSERVABILITY / "grafana/dashboards").glob("*.json"))}


def expressions():
    """(place, expression) of all dashboards, rules and data sources."""
    for name, board in dashboards().items():
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                yield f"{name}: {panel['title']}", target["expr"]
        for variable in board["templating"]["list"]:
            yield f"{name}: ${variable['name']}", variable["definition"]
    for group in load("prometheus/alerts.yml")["groups"]:
        for rule in group["rules"]:
            yield f"alerts.yml: {rule['alert']}", rule["expr"]
    for source in load("grafana/provisioning/datasources/datasources.yaml")["datasources"]:
        for query in source["jsonData"].get("tracesToMetrics", {}).get("queries", []):
            yield f"datasources.yaml: {query['name']}", query["query"].replace("$$__tags", "")


class Series(unittest.TestCase):
    def test_translation(self):
        cases = [
            ("megatron.training.loss", "gauge", "", {"megatron_training_loss"}),
            ("megatron.training.skipped_iters", "counter", "", {"megatron_training_skipped_iters_total"}),
            ("megatron.checkpoint.save_bytes", "counter", "By", {"megatron_checkpoint_save_bytes_total"}),
            ("a.step_ms", "histogram", "ms", {f"a_step_ms_milliseconds_{end}" for end in ("bucket", "sum", "count")}),
            ("a.wait_seconds", "gauge", "s", {"a_wait_seconds"}),
            ("a.tokens", "counter", "{token}", {"a_tokens_total"}),
            ("a.share", "gauge", "1", {"a_share_ratio"}),
        ]
        for name, kind, unit, expected in cases:
            with self.subTest(name=name):
                self.assertEqual(series_of(name, kind, unit), expected)

    def test_extraction(self):
        cases = [
            ('rate(a_total{x=~"$y", z="b c"}[2m]) / 3.5e2', {"a_total"}),
            ('histogram_quantile(0.95, sum by (le, dl_rank) (rate(b_bucket{run=~"r"}[2m])))', {"b_bucket"}),
            ("(increase(a[2h]) > 0 and a offset 2h) unless on (run) b", {"a", "b"}),
            ('label_values(a{b=~"$b"}, dl_rank)', {"a"}),
            ("a != a or abs(a) == Inf", {"a"}),
        ]
        for expression, expected in cases:
            with self.subTest(expression=expression):
                self.assertEqual(series_in(expression), expected)

    def test_an_unknown_series_is_found(self):
        self.assertEqual(unknown_series("rate(megatron_training_los[2m]) + up", {"megatron_training_loss"}), {"megatron_training_los"})

    def test_every_series_in_use_exists(self):
        known = all_series()
        places = list(expressions())
        self.assertGreater(len(places), 40)
        for place, expression in places:
            with self.subTest(place=place):
                self.assertTrue(series_in(expression), expression)
                self.assertEqual(unknown_series(expression, known), set(), expression)

    def test_every_own_series_is_shown(self):
        shown = set().union(*(series_in(expression) for _, expression in expressions()))
        for name, (kind, unit) in source_metrics().items():
            with self.subTest(metric=name):
                self.assertTrue(shown & series_of(name, kind, unit), "no dashboard or alert uses it")


class Documents(unittest.TestCase):
    def test_table_is_that_of_the_source(self):
        source = source_metrics()
        self.assertGreaterEqual(len(source), 28)
        literals = set(re.findall(r'\{\s*"((?:megatron|gen_ai)\.[a-z_.]+)",\s*k', METRIC_SOURCE.read_text()))
        self.assertEqual(set(source), literals, "a row of kMetrics is not understood")
        self.assertEqual({name: row[:2] for name, row in documented_metrics().items()}, source)

    def test_series_names(self):
        for name, (kind, unit, written) in documented_metrics().items():
            with self.subTest(metric=name):
                series = min(series_of(name, kind, unit))
                self.assertEqual(written, series.removesuffix("bucket") + "*" if kind == "histogram" else series)


class Dashboards(unittest.TestCase):
    def test_shape(self):
        boards = dashboards()
        self.assertEqual({board["uid"] for board in boards.values()}, {"megatron-training", "megatron-telemetry"})
        for name, board in boards.items():
            with self.subTest(dashboard=name):
                panels = board["panels"]
                self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
                self.assertEqual([v["name"] for v in board["templating"]["list"]], ["service", "run_id", "dl_rank"])
                for panel in panels:
                    self.assertTrue(panel["type"] == "row" or panel["targets"], panel["title"])

    def test_panels_do_not_overlap(self):
        for name, board in dashboards().items():
            cells = {}
            for panel in board["panels"]:
                at = panel["gridPos"]
                for x in range(at["x"], at["x"] + at["w"]):
                    for y in range(at["y"], at["y"] + at["h"]):
                        self.assertLess(x, 24, f"{name}: {panel['title']}")
                        self.assertNotIn((x, y), cells, f"{name}: {panel['title']} over {cells.get((x, y))}")
                        cells[x, y] = panel["title"]

    def test_every_query_can_be_filtered(self):
        for name, board in dashboards().items():
            for panel in board["panels"]:
                for target in panel.get("targets", []):
                    for selector in re.findall(r"\b(?:megatron_|gen_ai_(?!token_type))\w+(\{[^}]*\})?", target["expr"]):
                        with self.subTest(dashboard=name, panel=panel["title"]):
                            for variable in ("$service", "$run_id", "$dl_rank"):
                                self.assertIn(variable, selector)


class Files(unittest.TestCase):
    def test_yaml_files_parse(self):
        files = [path for path in OBSERVABILITY.rglob("*") if path.suffix in (".yaml", ".yml")]
        self.assertGreaterEqual(len(files), 8)
        for path in files:
            with self.subTest(file=path.name):
                self.assertIsInstance(yaml.safe_load(path.read_text()), dict)

    def test_collector_pipelines_name_what_is_declared(self):
        for name in ("config.yaml", "file.yaml"):
            config = load(f"collector/{name}")
            pipelines = config["service"]["pipelines"]
            self.assertEqual(set(pipelines), {"traces", "metrics", "logs"})
            for kind in ("receivers", "processors", "exporters"):
                used = {part for pipeline in pipelines.values() for part in pipeline[kind]}
                with self.subTest(file=name, kind=kind):
                    self.assertEqual(used, set(config[kind]))

    def test_collector_makes_labels_of_the_resource(self):
        exporter = load("collector/config.yaml")["exporters"]["prometheus"]
        self.assertTrue(exporter["resource_to_telemetry_conversion"]["enabled"])
        jobs = {job["job_name"]: job for job in load("prometheus/prometheus.yml")["scrape_configs"]}
        port = exporter["endpoint"].split(":")[1]
        self.assertEqual(jobs["megatron"]["static_configs"][0]["targets"], [f"collector:{port}"])

    def test_scrape_filter_keeps_our_series(self):
        jobs = {job["job_name"]: job for job in load("prometheus/prometheus.yml")["scrape_configs"]}
        keep = re.compile(jobs["megatron"]["metric_relabel_configs"][0]["regex"])
        for series in all_series():
            self.assertTrue(keep.fullmatch(series), series)

    def test_mounted_files_are_there(self):
        for name, service in load("docker-compose.yaml")["services"].items():
            for mount in service.get("volumes", []):
                if mount.startswith("./"):
                    self.assertTrue((OBSERVABILITY / mount.split(":")[0]).is_dir(), f"{name}: {mount}")

    def test_alert_rules(self):
        rules = [rule for group in load("prometheus/alerts.yml")["groups"] for rule in group["rules"]]
        tested = (OBSERVABILITY / "prometheus/alerts_test.yml").read_text()
        for rule in rules:
            with self.subTest(alert=rule["alert"]):
                self.assertIn(rule["labels"]["severity"], ("warning", "critical"))
                self.assertTrue(rule["annotations"]["summary"] and rule["annotations"]["action"])
                self.assertIn(rule["alert"], tested)


if __name__ == "__main__":
    unittest.main()
