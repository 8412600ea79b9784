"""Ports for the servers that a test starts, and for those that are meant to be missing."""

import contextlib
import random
import socket

RANGE = (20000, 32000)  # below the ports that the kernel gives to connections: none is taken before its server listens
CHANCE = random.SystemRandom()


def free_ports(number):
    """Different ports, free on all addresses."""
    with contextlib.ExitStack() as held:
        ports = []
        while len(ports) < number:
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("0.0.0.0", CHANCE.randint(*RANGE)))
                ports.append(probe.getsockname()[1])
        return ports


def free_port():
    return free_ports(1)[0]
