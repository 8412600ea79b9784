#!/usr/bin/env python3
"""Reference OTLP receiver: official protos, OTLP/HTTP (protobuf or JSON) and OTLP/gRPC, traces, metrics and logs.

Every request becomes one JSON line: how it came (transport, headers, encoding, sizes), what was answered, the findings
of a conformance check, and the decoded request in the OTLP/JSON mapping (hex ids, 64-bit integers as strings, enums as
numbers).

  otlp_sink.py --out got.jsonl --ready-file ready.json            receive on 4318 (HTTP) and 4317 (gRPC)
  otlp_sink.py --http-port 0 --grpc-port 0 --ready-file r.json    free ports, written to r.json
  otlp_sink.py --fault status=503,retry_after=1,count=2           first two requests refused, then normal

faults (--fault may be given more than once; the first that matches a request and is not used up applies):
  status=CODE[,retry_after=SECS][,retry_style=seconds|date|none]   HTTP status; over gRPC the code that OTLP maps it to
                        (429 RESOURCE_EXHAUSTED, 502/503/504 UNAVAILABLE, 400 INVALID_ARGUMENT, ...), and retry_after
                        becomes a RetryInfo detail; code=NAME picks the gRPC code itself
  delay=SECS            answer late (alone: a slow 200; it may stand beside any other key). Over HTTP the rest of the
                        server goes on, so a client's timeout and its next try can both be seen
  reset                 the TCP connection gets an RST after the request was read (HTTP and gRPC)
  truncate              HTTP: half of the announced answer body, then the connection closes
  garbage               success status, an answer body that is no protobuf
  partial=N[,message=TEXT]   success with partial_success, N items rejected (N=0 with a message is a warning)
  selectors for each:   count=N (only N requests), skip=N (not the first N), signal=traces|metrics|logs,
                        transport=http|grpc, prob=P (with --seed)

control over HTTP while running: GET /_sink/stats, GET /_sink/requests, POST /_sink/faults (one spec a line, replaces
all), POST /_sink/reset (forgets requests and faults).

In a test: from otlp_sink import Sink; with Sink(http_port=0, grpc_port=0, faults=["status=503,count=1"]) as s: ...
s.http_port, s.grpc_port, s.requests(), s.wait(lambda rows: ..., timeout), s.findings(), s.set_faults([...]), s.reset().

Findings: fields unknown to the official schema, wrong id lengths, all-zero ids, end before start, empty or repeated
keys, histogram counts that do not add up, unsorted bounds, unspecified temporality, missing timestamps, wrong
content type. --strict makes the exit status 1 if there was any. SIGINT or SIGTERM ends it in good order.
"""
import argparse
import collections
import email.utils
import gzip
import json
import os
import pathlib
import random
import signal
import socket
import socketserver
import ssl
import struct
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler

import grpc
from google.protobuf import duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from otlp_check import SIGNALS, check, from_json, to_json

GRPC_OF_HTTP = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "UNIMPLEMENTED",
                408: "DEADLINE_EXCEEDED", 413: "RESOURCE_EXHAUSTED", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL",
                501: "UNIMPLEMENTED", 502: "UNAVAILABLE", 503: "UNAVAILABLE", 504: "UNAVAILABLE"}


# ---------------------------------------------------------------- faults
class Fault:
    def __init__(self, spec):
        self.spec, self.used, self.seen, self.kind = spec, 0, 0, "delay"
        kv = dict(part.partition("=")[::2] for part in spec.split(","))
        known = {"status", "code", "retry_after", "retry_style", "delay", "reset", "truncate", "garbage", "partial", "message",
                 "count", "skip", "signal", "transport", "prob"}
        if set(kv) - known:
            raise ValueError(f"fault {spec!r}: unknown key {', '.join(sorted(set(kv) - known))}")
        for k in ("status", "reset", "truncate", "garbage", "partial"):
            if k in kv:
                self.kind = k
        if self.kind == "delay" and "delay" not in kv:
            if "code" not in kv:
                raise ValueError(f"fault {spec!r}: says nothing to do")
            self.kind = "status"
        self.status = int(kv.get("status", 503))
        self.code = kv.get("code") or GRPC_OF_HTTP.get(self.status, "UNKNOWN")
        code_pb2.Code.Value(self.code)
        self.retry_after = float(kv["retry_after"]) if "retry_after" in kv else None
        self.retry_style, self.delay = kv.get("retry_style", "seconds"), float(kv.get("delay", 0))
        self.partial, self.message = int(kv.get("partial") or 0), kv.get("message", "injected")
        self.count, self.skip = float(kv.get("count", "inf")), int(kv.get("skip", 0))
        self.signal, self.transport, self.prob = kv.get("signal"), kv.get("transport"), float(kv.get("prob", 1))
        if self.signal not in (None, *SIGNALS) or self.transport not in (None, "http", "grpc"):
            raise ValueError(f"fault {spec!r}: no such signal or transport")

    def takes(self, sig, transport, rng):
        if self.signal not in (None, sig) or self.transport not in (None, transport) or self.used >= self.count:
            return False
        self.seen += 1
        if self.seen <= self.skip or rng.random() >= self.prob:
            return False
        self.used += 1
        return True


def rst_close(sock):
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    except OSError:
        pass


# ---------------------------------------------------------------- the sink
class Sink:
    def __init__(self, host="127.0.0.1", http_port=4318, grpc_port=4317, out=None, raw_dir=None, faults=(), seed=0, max_mib=64,
                 tls_cert=None, tls_key=None, client_ca=None, keep=True, grpc_direct=False):
        self.host, self.want_http, self.want_grpc, self.raw_dir, self.keep = host, http_port, grpc_port, raw_dir, keep
        self.tls, self.client_ca, self.max_bytes, self.grpc_direct = (tls_cert, tls_key), client_ca, max_mib << 20, grpc_direct
        self.out = sys.stdout if out == "-" else open(out, "a", buffering=1) if out else None
        self.cond, self.rows, self.seq, self.rng = threading.Condition(), [], 0, random.Random(seed)
        self.stats, self.http_port, self.grpc_port = collections.Counter(), None, None
        self.http = self.grpc = self.fwd = None
        self.set_faults(faults)
        if raw_dir:
            os.makedirs(raw_dir, exist_ok=True)

    def set_faults(self, specs):
        self.faults = [Fault(s) for s in specs]

    def start(self):
        if self.want_http is not None:
            self.http = HttpServer((self.host, self.want_http), HttpHandler)
            self.http.sink = self
            if self.tls[0]:
                ctx = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.client_ca)
                ctx.load_cert_chain(*self.tls)
                if self.client_ca:
                    ctx.verify_mode = ssl.CERT_REQUIRED
                self.http.tls = ctx
            self.http_port = self.http.server_address[1]
            threading.Thread(target=self.http.serve_forever, args=(0.1,), daemon=True).start()
        if self.want_grpc is not None:
            from concurrent.futures import ThreadPoolExecutor
            self.grpc = grpc.server(ThreadPoolExecutor(32), options=[("grpc.max_receive_message_length", self.max_bytes), ("grpc.so_reuseport", 0)])
            for sig, d in SIGNALS.items():
                h = grpc.unary_unary_rpc_method_handler(lambda body, ctx, sig=sig: self.grpc_export(sig, body, ctx))
                self.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(d["service"], {"Export": h}),))
            addr = f"{self.host}:{self.want_grpc}" if self.grpc_direct else "127.0.0.1:0"
            if self.tls[0]:
                cert, key = (pathlib.Path(p).read_bytes() for p in self.tls)
                ca = pathlib.Path(self.client_ca).read_bytes() if self.client_ca else None
                port = self.grpc.add_secure_port(addr, grpc.ssl_server_credentials([(key, cert)], ca, bool(ca)))
            else:
                port = self.grpc.add_insecure_port(addr)
            self.grpc.start()
            if not self.grpc_direct:
                self.fwd = Forwarder((self.host, self.want_grpc), port)
                port = self.fwd.port
            self.grpc_port = port
        return self

    def stop(self):
        if self.http:
            self.http.shutdown()
            self.http.server_close()
        if self.fwd:
            self.fwd.close()
        if self.grpc:
            self.grpc.stop(0).wait()
        if self.out not in (None, sys.stdout):
            self.out.close()

    __enter__ = start

    def __exit__(self, *exc):
        self.stop()

    def requests(self, sig=None):
        with self.cond:
            return [r for r in self.rows if sig in (None, r["signal"])]

    def findings(self):
        return [f for r in self.requests() for f in r["findings"]]

    def wait(self, pred, timeout=10.0):
        """The rows, once pred(rows) holds; TimeoutError after timeout seconds."""
        with self.cond:
            if not self.cond.wait_for(lambda: pred(self.rows), timeout):
                raise TimeoutError(f"not seen within {timeout} s; {len(self.rows)} requests so far")
            return list(self.rows)

    def reset(self):
        with self.cond:
            self.rows.clear()
            self.stats.clear()
        self.set_faults(())

    def pick(self, sig, transport):
        with self.cond:
            return next((f for f in self.faults if f.takes(sig, transport, self.rng)), None)

    def record(self, sig, transport, body, msg, findings, items, fault, status, **how):
        accepted = status in (200, "OK") and not (fault and fault.kind in ("reset", "truncate", "garbage"))
        with self.cond:
            self.seq += 1
            row = dict(seq=self.seq, received_unix_nano=time.time_ns(), transport=transport, signal=sig, status=status, accepted=accepted,
                       fault=fault.spec if fault else None, **how, body_bytes=len(body), items=items, findings=findings,
                       request=to_json(msg) if msg is not None else None)
            if self.raw_dir:
                with open(os.path.join(self.raw_dir, f"{self.seq:06d}-{sig}.bin"), "wb") as f:
                    f.write(body)
            self.stats.update({"requests": 1, "findings": len(findings), f"requests.{sig}": 1, f"items.{sig}.{'accepted' if accepted else 'refused'}": items,
                               f"status.{status}": 1})
            if self.keep:
                self.rows.append(row)
            if self.out:
                self.out.write(json.dumps(row, separators=(",", ":")) + "\n")
                self.out.flush()
            self.cond.notify_all()

    def decode(self, sig, body, as_json=False):
        try:
            msg = from_json(body, SIGNALS[sig]["request"]) if as_json else SIGNALS[sig]["request"].FromString(body)
        except Exception as e:  # the protobuf runtimes have no common base class for this
            return None, 0, [f"cannot be decoded: {type(e).__name__}: {e}"]
        items, findings = check(sig, msg)
        return msg, items, findings

    def answer(self, sig, fault):
        resp = SIGNALS[sig]["response"]()
        if fault and fault.kind == "partial":
            setattr(resp.partial_success, SIGNALS[sig]["rejected"], fault.partial)
            resp.partial_success.error_message = fault.message
        return resp

    def grpc_export(self, sig, body, ctx):
        msg, items, findings = self.decode(sig, body)
        fault = self.pick(sig, "grpc")
        status = fault.code if fault and fault.kind == "status" else "INVALID_ARGUMENT" if msg is None else "OK"
        wire = self.fwd.take_bytes(ctx.peer()) if self.fwd else None
        left = ctx.time_remaining()
        self.record(sig, "grpc", body, msg, findings, items, fault, status, path=f"/{SIGNALS[sig]['service']}/Export", encoding=None,
                    headers={k: v if isinstance(v, str) else v.hex() for k, v in ctx.invocation_metadata()}, wire_bytes=wire,
                    deadline_s=None if left is None or left > 1e6 else round(left, 3))
        if fault and fault.delay:
            time.sleep(fault.delay)
        if fault and fault.kind == "reset" and self.fwd:
            self.fwd.reset(ctx.peer())
        if fault and fault.kind in ("reset", "truncate"):
            ctx.abort(grpc.StatusCode.UNAVAILABLE, "injected " + fault.kind)
        if status != "OK":
            st = status_pb2.Status(code=code_pb2.Code.Value(status), message=fault.message if fault else findings[0])
            if fault and fault.retry_after is not None:
                info = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=int(fault.retry_after), nanos=int(fault.retry_after % 1 * 1e9)))
                st.details.add().Pack(info)
            ctx.set_trailing_metadata((("grpc-status-details-bin", st.SerializeToString()),))
            ctx.abort(getattr(grpc.StatusCode, status), st.message)
        return b"\xff\xff\xff" if fault and fault.kind == "garbage" else self.answer(sig, fault).SerializeToString()


# ---------------------------------------------------------------- HTTP
class HttpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address, daemon_threads, request_queue_size, tls = True, True, 128, None

    def finish_request(self, request, client_address):
        if self.tls:  # in the connection's own thread, so that a bad handshake holds nobody up
            request = self.tls.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, request, client_address):
        pass  # resets are part of the job


class HttpHandler(BaseHTTPRequestHandler):
    protocol_version, server_version, timeout = "HTTP/1.1", "otlp-sink", 120
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, code, body=b"", ctype="application/x-protobuf", extra=(), cut=False):
        self.send_response(code)
        for k, v in (("Content-Type", ctype), ("Content-Length", str(len(body))), *extra):
            self.send_header(k, v)
        self.end_headers()
        self.wfile.write(body[:len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut

    def do_GET(self):
        sink = self.server.sink
        data = {"/_sink/stats": lambda: dict(sink.stats), "/_sink/requests": sink.requests}.get(self.path.split("?")[0])
        self.reply(200 if data else 404, json.dumps(data()).encode() if data else b"", "application/json")

    def do_POST(self):
        sink, path, wire = self.server.sink, self.path.split("?")[0], self.body()
        if path in ("/_sink/faults", "/_sink/reset"):
            try:
                sink.reset() if path.endswith("reset") else sink.set_faults([l for l in wire.decode().splitlines() if l.strip()])
                return self.reply(200, b"{}", "application/json")
            except ValueError as e:
                return self.reply(400, str(e).encode(), "text/plain")
        sig = path[4:] if path.startswith("/v1/") else None
        if sig not in SIGNALS:
            return self.reply(404, status_pb2.Status(code=12, message=f"no such path {path}").SerializeToString())
        ctype, enc = self.headers.get("Content-Type", "").split(";")[0].strip().lower(), self.headers.get("Content-Encoding", "").strip().lower()
        as_json, notes, body = ctype == "application/json", [], wire
        try:
            if enc == "gzip":
                body = gzip.decompress(wire)
            elif enc == "deflate":
                body = zlib.decompress(wire)
            elif enc not in ("", "identity"):
                notes.append(f"content encoding {enc!r} is not one that OTLP servers must take")
        except (OSError, EOFError, zlib.error) as e:
            notes.append(f"cannot be decompressed: {e}")
        msg, items, findings = (None, 0, []) if notes else sink.decode(sig, body, as_json)
        status = 200 if msg is not None else 400
        if ctype not in ("application/x-protobuf", "application/json"):
            notes, status = notes + [f"content type {ctype!r}"], 415
        fault = sink.pick(sig, "http")
        if fault and fault.kind == "status":
            status = fault.status
        sink.record(sig, "http", body, msg, notes + findings, items, fault, status, path=self.path, encoding=enc or "identity",
                    headers={k.lower(): v for k, v in self.headers.items()}, wire_bytes=len(wire), deadline_s=None)
        if fault and fault.delay:
            time.sleep(fault.delay)
        if fault and fault.kind == "reset":
            self.close_connection = True
            return rst_close(self.connection)
        extra = []
        if status == 200:
            resp = sink.answer(sig, fault)
        else:
            resp = status_pb2.Status(code=code_pb2.Code.Value(GRPC_OF_HTTP.get(status, "UNKNOWN")), message=(notes + findings + ["injected"])[0])
            if fault and fault.retry_after is not None and fault.retry_style != "none":
                after = fault.retry_after
                extra = [("Retry-After", email.utils.formatdate(time.time() + after, usegmt=True) if fault.retry_style == "date" else f"{after:g}")]
        data = json.dumps(to_json(resp)).encode() if as_json else resp.SerializeToString()
        cut = bool(fault and fault.kind == "truncate")
        if fault and fault.kind == "garbage":
            data = b"\xff\xff\xff"
        elif cut and len(data) < 2:  # the plain success answer is empty: give it a body that can be cut
            resp.partial_success.error_message = "cut" * 20
            data = resp.SerializeToString()
        try:
            self.reply(status, data, "application/json" if as_json else "application/x-protobuf", extra, cut)
        except OSError:
            self.close_connection = True


# ---------------------------------------------------------------- gRPC's front: counts bytes, resets connections
class Forwarder:
    """A TCP forwarder before the gRPC server, which itself can neither count bytes on the wire nor send an RST."""

    def __init__(self, addr, backend):
        self.listener = socket.create_server(addr, backlog=128)
        self.port, self.backend, self.conns, self.lock = self.listener.getsockname()[1], backend, {}, threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            up = socket.create_connection(("127.0.0.1", self.backend))
            for s in (client, up):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            key = up.getsockname()[1]
            with self.lock:
                self.conns[key] = [client, up, 0, 0]
            threading.Thread(target=self.pump, args=(key, client, up, True), daemon=True).start()
            threading.Thread(target=self.pump, args=(key, up, client, False), daemon=True).start()

    def pump(self, key, src, dst, inbound):
        try:
            while data := src.recv(65536):
                if inbound:
                    self.conns[key][2] += len(data)
                dst.sendall(data)
        except (OSError, KeyError):
            pass
        for s in (src, dst):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def find(self, peer):
        return self.conns.get(int(peer.rsplit(":", 1)[1])) if peer.rsplit(":", 1)[-1].isdigit() else None

    def take_bytes(self, peer):
        """Bytes received on this connection since the last call: one request's, where requests don't overlap."""
        with self.lock:
            c = self.find(peer)
            if not c:
                return None
            n, c[3] = c[2] - c[3], c[2]
            return n

    def reset(self, peer):
        with self.lock:
            c = self.find(peer)
        if c:
            c[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            try:
                c[1].shutdown(socket.SHUT_RDWR)  # wakes both pumps, so that no thread holds the client's socket
            except OSError:
                pass
            rst_close(c[0])

    def close(self):
        self.listener.close()
        for c in list(self.conns.values()):
            for s in c[:2]:
                try:
                    s.shutdown(socket.SHUT_RDWR)
                    s.close()
                except OSError:
                    pass


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    port = lambda v: None if v == "off" else int(v)
    ap.add_argument("--http-port", default=4318, type=port, metavar="PORT", help="default 4318; 0: a free one; off: none")
    ap.add_argument("--grpc-port", default=4317, type=port, metavar="PORT", help="default 4317; 0: a free one; off: none")
    ap.add_argument("--out", default="-", help="file that the JSON lines are appended to (default: standard output)")
    ap.add_argument("--raw-dir", metavar="DIR", help="also write each request's uncompressed bytes there, one file each")
    ap.add_argument("--ready-file", metavar="FILE", help="write {http_port, grpc_port, pid} there once listening")
    ap.add_argument("--fault", action="append", default=[], metavar="SPEC", help="inject a fault (see above)")
    ap.add_argument("--seed", type=int, default=0, help="for prob= in faults")
    ap.add_argument("--max-mib", type=int, default=64, help="largest gRPC message (default 64)")
    ap.add_argument("--grpc-direct", action="store_true", help="no byte counter before gRPC: faster, but no reset over gRPC and no wire_bytes")
    ap.add_argument("--tls-cert", metavar="PEM"), ap.add_argument("--tls-key", metavar="PEM")
    ap.add_argument("--client-ca", metavar="PEM", help="ask clients for a certificate by this CA (mutual TLS)")
    ap.add_argument("--requests", type=int, metavar="N", help="end after N requests")
    ap.add_argument("--seconds", type=float, metavar="S", help="end after S seconds")
    ap.add_argument("--strict", action="store_true", help="exit status 1 if there was any finding")
    a = ap.parse_args()
    done = threading.Event()
    for s in (signal.SIGINT, signal.SIGTERM):
        signal.signal(s, lambda *_: done.set())
    try:
        sink = Sink(a.host, a.http_port, a.grpc_port, a.out, a.raw_dir, a.fault, a.seed, a.max_mib, a.tls_cert, a.tls_key, a.client_ca, True, a.grpc_direct)
    except ValueError as e:
        ap.error(str(e))
    sink.start()
    ready = json.dumps(dict(http_port=sink.http_port, grpc_port=sink.grpc_port, pid=os.getpid()))
    print("ready " + ready, file=sys.stderr, flush=True)
    if a.ready_file:
        with open(a.ready_file + ".tmp", "w") as f:
            f.write(ready)
        os.replace(a.ready_file + ".tmp", a.ready_file)
    end = time.monotonic() + a.seconds if a.seconds else float("inf")
    while not done.wait(0.05) and time.monotonic() < end and not (a.requests and sink.stats["requests"] >= a.requests):
        pass
    time.sleep(0.1)  # the last answer is on its way
    sink.stop()
    print("stats " + json.dumps(dict(sink.stats)), file=sys.stderr)
    return 1 if a.strict and sink.stats["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
