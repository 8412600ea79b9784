"""rotel, an OTLP receiver that no one here wrote, throwing away all it gets: what the exporter is measured against."""

import common
import rotel_agent


def program():
    found = sorted((common.ROOT / ".venv-test").glob("lib/python3*/site-packages/rotel/rotel-agent"))
    if not found:
        raise SystemExit("rotel is missing: run tools/bootstrap test")
    return found[0]


def blackhole():
    """Ports of a running receiver by protocol ("grpc", "http/protobuf")."""
    return rotel_agent.running(program(), "--exporter", "blackhole")
