"""rotel, an OTLP receiver that no one here wrote, throwing away all it gets: what the exporter is measured against."""

import contextlib
import pathlib
import socket
import subprocess
import time

import common


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def program():
    found = sorted((common.ROOT / ".venv-test").glob("lib/python3*/site-packages/rotel/rotel-agent"))
    if not found:
        raise SystemExit("rotel is missing: run tools/bootstrap test")
    return found[0]


@contextlib.contextmanager
def blackhole():
    """Ports (gRPC, HTTP) of a running receiver."""
    grpc, http = free_port(), free_port()
    command = [program(), "start", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}", "--otlp-http-endpoint", f"127.0.0.1:{http}"]
    command += ["--exporter", "blackhole"]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for port in (grpc, http):
            for _ in range(100):
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                time.sleep(0.05)
        yield grpc, http
    finally:
        process.terminate()
        process.wait()
