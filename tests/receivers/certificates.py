"""Certificates for TLS tests, made by the program openssl: NAME.pem and NAME.key."""

import pathlib
import subprocess


def make_certificates(folder, names=("server", "client"), strangers=()):
    """An authority `ca`, certificates of `names` signed by it for 127.0.0.1, and authorities nobody trusts."""
    for name in ("ca", *strangers):
        _make(folder, name)
    for name in names:
        _make(folder, name, "-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1")


def _make(folder, name, *options):
    command = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}"]
    command += ["-x509", "-days", "2", "-keyout", f"{name}.key", "-out", f"{name}.pem", *options]
    subprocess.run(command, cwd=pathlib.Path(folder), check=True, capture_output=True)
