"""rotel, an OTLP agent that shares no code with either side, between a sender and a Sink."""

import contextlib
import pathlib
import socket
import subprocess
import tempfile
import time


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def running_rotel(sink):
    """Its ports by protocol ("grpc", "http/protobuf"), once they are open. What comes there goes on to the sink at once."""
    import rotel

    program = pathlib.Path(rotel.__file__).parent / "rotel-agent"
    ports = {"grpc": free_port(), "http/protobuf": free_port()}
    with tempfile.TemporaryDirectory() as folder:
        agent = subprocess.Popen(
            [program, "start", "--otlp-grpc-endpoint", f"127.0.0.1:{ports['grpc']}", "--otlp-http-endpoint"]
            + [f"127.0.0.1:{ports['http/protobuf']}", "--exporter", "otlp", "--otlp-exporter-endpoint"]
            + [f"http://127.0.0.1:{sink.http_port}", "--otlp-exporter-protocol", "http", "--disable-batching"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder,
        )
        try:
            for port in ports.values():
                end = time.monotonic() + 20
                while time.monotonic() < end:
                    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                        break
                    time.sleep(0.05)
            yield ports
        finally:
            agent.terminate()
            agent.wait(20)
