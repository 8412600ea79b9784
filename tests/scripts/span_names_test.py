"""Every span site of the C++ sources uses a name and attribute keys that Megatron's dashboards can rely on.

Names are `megatron.<subsystem>.<operation>[.<part>]` in lower snake case, attribute keys begin with `megatron.`, `dl.` or
`gen_ai.`. What Megatron itself names otherwise is listed below, with the reason. Tests may name their spans as they like.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

NAME = re.compile(r"megatron(\.[a-z][a-z0-9_]*){2,3}")
KEY = re.compile(r"(megatron|dl|gen_ai)(\.[a-z][a-z0-9_]*)+")

# Names outside the rule, each with its reason.
NAME_EXCEPTIONS = {
    "pre_startup": "Megatron's name for the time between the scheduler's start and the launch script",
    "megatron.startup": "root span of the start",
    "megatron.train": "root span of a block of passes",
    "megatron.evaluate": "Megatron's name for an evaluation, without an operation",
}

# Attribute keys outside the rule, each with its reason.
KEY_EXCEPTIONS = {
    "num_microbatches": "Megatron sets it without a namespace",
    "is_goodput_span": "Megatron's mark for resiliency accounting",
    "nvrx.call_idx": "joins an asynchronous save with the spans of its worker",
    "nemo.span.truncated": "set by nemo-lens on a span that shutdown closed",
    "nemo.span.truncated.reason": "goes with nemo.span.truncated",
}

# Constants that stand for a key.
KEY_CONSTANTS = {"kGoodput": "is_goodput_span"}

# Names that a site computes: (file, expression) and where the text comes from, which the last test looks at.
COMPUTED_NAMES = {
    ("pharos/lens/life/startup.cc", "name"): "span_name_of(): megatron.startup.<phase>",
    ("pharos/lens/life/startup.cc", "name_"): "IntervalSpans takes it from its constructor, which is a site",
}

# Markers of this group keep the name they were given (megatron-telemetry.md section 6.4).
FREE_NAME_GROUP = "kTraceRegion"

# These define the functions below; their parameters are not sites.
DEFINITIONS = {f"pharos/lens/{name}" for name in ("span.h", "span.cc", "life/startup.h", "context/propagation.h", "context/propagation.cc")}

# function → position of the name among its arguments
SITES = {
    "PHAROS_SPAN": 2, "managed_span": 1, "span_cm": 0, "start_span": 1, "record_span": 0, "traced": 1, "create_linked_span": 0
}
SITE = re.compile(r"\b(" + "|".join(SITES) + r"|IntervalSpans\s+\w+)\s*\(")
SET = re.compile(r"(?:\.|->)(?:set|set_raw)\s*\(\s*(\"[^\"]*\"|(?:\w+::)*k[A-Z]\w*)\s*,")
PAIRS = re.compile(r"\b(?:add_event|safe_set_span_attributes)\s*\(")
PAIR = re.compile(r"\{\s*(\"[^\"]*\"|(?:\w+::)*k[A-Z]\w*)\s*,")
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.DOTALL)


def without_comments(text):
    """The text with comments blanked and line breaks kept."""

    def blank(match):
        piece = match.group()
        return re.sub(r"[^\n]", " ", piece) if piece.startswith("/") else piece

    return COMMENT.sub(blank, text)


def arguments(text, start):
    """The comma-separated parts between the bracket before `start` and its partner."""
    parts, depth, begin, position = [], 0, start, start
    while position < len(text):
        character = text[position]
        if character == '"':
            position = LITERAL.match(text, position).end()
            continue
        if character in "([{":
            depth += 1
        elif character in ")]}":
            if depth == 0:
                return parts + [text[begin:position].strip()]
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[begin:position].strip())
            begin = position + 1
        position += 1
    return parts


def key_problem(written):
    """What is wrong with a key as it stands in the source (a literal or a constant); None if nothing."""
    key = written.strip('"') if written.startswith('"') else KEY_CONSTANTS.get(written.split("::")[-1])
    if key is None:
        return f"constant {written} is not in KEY_CONSTANTS"
    if not KEY.fullmatch(key) and key not in KEY_EXCEPTIONS:
        return f"attribute key {key!r} is outside megatron.*, dl.*, gen_ai.*"
    return None


def name_problem(file, site, parts):
    """What is wrong with the name of a site; None if nothing."""
    position = SITES.get(site, 0)
    if len(parts) <= position:
        return "has no name"
    written = parts[position]
    if any(FREE_NAME_GROUP in part for part in parts[:position]):
        return None
    literal = LITERAL.fullmatch(written)
    if not literal:
        return None if (file, written) in COMPUTED_NAMES else f"computed name {written!r} is not in COMPUTED_NAMES"
    name = literal.group(1)
    if not NAME.fullmatch(name) and name not in NAME_EXCEPTIONS:
        return f"span name {name!r} is not megatron.<subsystem>.<operation>[.<part>]"
    return None


def sites_of(text):
    """(line, function, arguments) of each span site in a text without comments."""
    for match in SITE.finditer(text):
        site = match.group(1).split()[0]
        yield text.count("\n", 0, match.start()) + 1, site, arguments(text, match.end())


def problems_of(file, source):
    """"file:line: problem" for each fault of one source file."""
    text = without_comments(source)
    found = []
    has_site = False
    for line, site, parts in sites_of(text):
        has_site = True
        keys = [key.group(1) for part in parts for key in PAIR.finditer(part)]
        for problem in [name_problem(file, site, parts), *map(key_problem, keys)]:
            if problem:
                found.append(f"{file}:{line}: {problem}")
    if not has_site and not PAIRS.search(text):
        return found
    later = [(match.start(), match.group(1)) for match in SET.finditer(text)]
    for match in PAIRS.finditer(text):
        later += [(match.start(), key.group(1)) for part in arguments(text, match.end()) for key in PAIR.finditer(part)]
    for place, written in later:
        problem = key_problem(written)
        if problem:
            found.append(f"{file}:{text.count(chr(10), 0, place) + 1}: {problem}")
    return found


def sources():
    for path in sorted((ROOT / "pharos").rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in (".cc", ".h") and not re.search(r"_(test|fuzz)\.cc$", name) and name not in DEFINITIONS:
            yield name, path.read_text()


GOOD = [
    'PHAROS_SPAN(span, Group::kStep, "megatron.train.iteration", {lens::kGoodput, true}, {"megatron.iteration", f(1, 2)});',
    'PHAROS_SPAN(s, lens::Group::kCheckpoint,\n  "megatron.checkpoint.save.io_write");',
    'lens::IntervalSpans intervals("megatron.train", interval, context);',
    'record_span("pre_startup", Group::kJob, a, b, {}, {{kGoodput, true}});',
    'start_span(Group::kJob, "megatron.startup", options, {{kGoodput, true}, {"megatron.model_type", "a{,b"}});',
    'PHAROS_SPAN(s, Group::kTraceRegion, "dcp.read_data");',
    'PHAROS_SPAN(s, Group::kStep, "megatron.train.log"); s.set("dl.rank", 1); s.set("nvrx.call_idx", 2);',
    '// PHAROS_SPAN(s, Group::kStep, "anything")\n',
    'span.add_event("spike", {{"megatron.iteration", 3}});\nspan.set_raw("megatron.text", text);',
    'map.set("anything", 1);',  # a file without a span site has nothing to do with spans
]

BAD = [
    ('PHAROS_SPAN(s, Group::kStep, "train.iteration");', "span name 'train.iteration'"),
    ('PHAROS_SPAN(s, Group::kStep, "megatron.Train.step");', "span name"),
    ('PHAROS_SPAN(s, Group::kStep, "megatron.iteration");', "span name"),
    ('PHAROS_SPAN(s, Group::kStep, "megatron.a.b.c.d");', "span name"),
    ('lens::traced(Group::kStep, "step", [&] { run(); });', "span name 'step'"),
    ("managed_span(Group::kStep, name);", "computed name 'name'"),
    ('span_cm("megatron.data.read", {"rows", 5});', "attribute key 'rows'"),
    ('PHAROS_SPAN(s, Group::kStep, "megatron.train.log", {"megatron.Rows", 5});', "attribute key 'megatron.Rows'"),
    ('PHAROS_SPAN(s, Group::kStep, "megatron.train.log", {kRows, 5});', "constant kRows"),
    ('PHAROS_SPAN(s, Group::kStep, "megatron.train.log");\nif (s) s.set("loss", 5);', "a.cc:2: attribute key 'loss'"),
    ('lens::IntervalSpans blocks("blocks", 5);', "span name 'blocks'"),
    ('PHAROS_SPAN(s, Group::kStep);', "has no name"),
    ('span.add_event("spike", {{"iteration", 3}});', "attribute key 'iteration'"),
    ('safe_set_span_attributes(span, {{"megatron.rows", 1}, {"columns", 2}});', "attribute key 'columns'"),
    ('PHAROS_SPAN(s, Group::kStep, "megatron.train.log");\ns.set_raw("loss", 5);', "a.cc:2: attribute key 'loss'"),
    ('lens::create_linked_span("receive", carrier);', "span name 'receive'"),
]


class SpanNames(unittest.TestCase):
    def test_accepts_what_is_allowed(self):
        for source in GOOD:
            with self.subTest(source=source):
                self.assertEqual(problems_of("a.cc", source), [])

    def test_refuses_what_is_not(self):
        for source, expected in BAD:
            with self.subTest(source=source):
                found = problems_of("a.cc", source)
                self.assertEqual(len(found), 1, found)
                self.assertIn(expected, found[0])

    def test_sources(self):
        found = [problem for name, source in sources() for problem in problems_of(name, source)]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_scan_sees_the_sites(self):
        names = {
            literal.group(1)
            for _, source in sources()
            for _, site, parts in sites_of(without_comments(source))
            if (literal := LITERAL.fullmatch(parts[SITES.get(site, 0)]))
        }
        expected = {"megatron.startup", "megatron.train", "megatron.train.iteration", "megatron.checkpoint.save.io_write",
                    "megatron.layer.forward", "megatron.evaluate.step"}
        self.assertLessEqual(expected, names)

    def test_documented_tree(self):
        """docs/observability/groups.md shows every span that tests/trace_tree_test.py finds in a real run, with group and mark."""
        tree = re.search(r'^TREE = """\n(.*?)"""', (ROOT / "tests/trace_tree_test.py").read_text(), re.DOTALL | re.MULTILINE)
        row = re.compile(r"(?:[\u2500-\u257f ]|^)*([a-z_][a-z0-9_.]*)(?: …)?  +([a-z_]+)(?: +(G)\b)?", re.MULTILINE)
        page = (ROOT / "docs/observability/groups.md").read_text()
        documented = {(name, group, mark or "-") for name, group, mark in row.findall(page)}
        found = {tuple(line.split()[:3]) for line in tree.group(1).splitlines()}
        self.assertGreater(len(found), 30)
        self.assertEqual(found - documented, set())

    def test_computed_names(self):
        for file, expression in COMPUTED_NAMES:
            with self.subTest(file=file, expression=expression):
                text = without_comments((ROOT / file).read_text())
                uses = [parts[SITES.get(site, 0)] for _, site, parts in sites_of(text)]
                self.assertIn(expression, uses, "this exception is no longer needed")
        startup = without_comments((ROOT / "pharos/lens/life/startup.cc").read_text())
        prefixes = {name for name in LITERAL.findall(startup) if name.startswith("megatron.") and name.endswith(".")}
        self.assertEqual(prefixes, {"megatron.startup."})


if __name__ == "__main__":
    unittest.main()
