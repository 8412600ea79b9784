"""rotel, an OTLP agent that shares no code with either side, between a sender and a Sink."""

import contextlib
import pathlib
import socket
import subprocess
import tempfile
import time

from free_ports import free_ports

START_S = 60  # a busy machine


def wait_until_open(agent, ports):
    end = time.monotonic() + START_S
    for port in ports:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if agent.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"rotel does not listen on port {port}; exit code {agent.poll()}")
            time.sleep(0.05)


@contextlib.contextmanager
def running(program, *exporter):
    """Its ports by protocol ("grpc", "http/protobuf"), once they are open. `exporter` says where it sends what comes there."""
    ports = dict(zip(("grpc", "http/protobuf"), free_ports(2)))
    command = [program, "start", "--otlp-grpc-endpoint", f"127.0.0.1:{ports['grpc']}"]
    command += ["--otlp-http-endpoint", f"127.0.0.1:{ports['http/protobuf']}", *exporter]
    with tempfile.TemporaryDirectory() as folder:
        agent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
        try:
            wait_until_open(agent, ports.values())
            yield ports
        finally:
            agent.terminate()
            agent.wait(20)


def running_rotel(sink):
    """What comes to its ports goes on to the sink at once."""
    import rotel

    program = pathlib.Path(rotel.__file__).parent / "rotel-agent"
    where = ("--otlp-exporter-endpoint", f"http://127.0.0.1:{sink.http_port}", "--otlp-exporter-protocol", "http")
    return running(program, "--exporter", "otlp", *where, "--disable-batching")
