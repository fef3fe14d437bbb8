"""Packets of one connection that vanish for a while, without any proxy: what the kernel sends again
afterwards is a late request, though its socket may be closed by then.

A rule of the routing table makes one flow a black hole. That needs a network namespace, so that
nothing else on the machine is touched: the whole run moves into one of its own, with loopback
alone. Root and Linux with iproute2 are needed; elsewhere this kind is left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import subprocess
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

_CLONE_NEWNET: Final = 0x40000000
_PREFERENCE: Final = "100"
"""Of the black hole's rule: before that of local addresses."""
_IDLE_MS: Final = 2000
"""Who has sent nothing for so long is not about to."""


def can_be_lost() -> bool:
    """Whether this process may move into a network namespace and make rules there."""
    if os.geteuid() != 0:
        return False
    try:
        tried = ["unshare", "-n", "sh", "-c", "ip link set lo up && ip rule add pref 200 lookup local && ss -tinpH"]
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def move_into_namespace() -> None:
    """For this thread and all that it starts from now on.

    There is no way out of loopback: what is to be downloaded must be there.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare: no network namespace")
    _ip("link", "set", "lo", "up")
    # Loopback's addresses are looked up behind the black hole's rule; by default they come before
    # all others.
    _ip("rule", "add", "pref", "200", "lookup", "local")
    _ip("rule", "del", "pref", "0")


def moved() -> bool:
    """Whether this process is in such a namespace: a rule elsewhere could touch what is not ours,
    and would do nothing.
    """
    try:
        rules = subprocess.run(["ip", "rule"], capture_output=True, text=True, check=False).stdout.splitlines()
    except FileNotFoundError:
        return False
    return bool(rules) and not any(line.startswith("0:") for line in rules)


@dataclass(frozen=True, slots=True)
class Flow:
    """One connection, and how it stands."""

    pids: frozenset[int]
    """Who holds it: a process that starts another shares its sockets with it for a moment."""
    port: int
    """Its own, not the server's."""
    idle_ms: int
    resent: bool
    """The kernel sends again what was not acknowledged, and waits longer each time."""


def flows(ports: Collection[int]) -> list[Flow]:
    """Connections to these ports of loopback, in the order of their own ports."""
    command = ["ss", "-tinpHO", "state", "established"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted((flow for line in lines if (flow := parse(line, ports))), key=lambda flow: flow.port)


def parse(line: str, ports: Collection[int]) -> Flow | None:
    """One line of ss."""
    addresses = re.search(r"127\.0\.0\.1:(\d+)\s+127\.0\.0\.1:(\d+)\s", line)
    processes = frozenset(map(int, re.findall(r"pid=(\d+),", line)))
    if addresses is None or not processes or int(addresses[2]) not in ports:
        return None
    idle = re.search(r"\blastsnd:(\d+)", line)
    return Flow(processes, int(addresses[1]), int(idle[1]) if idle else 0, re.search(r"\bbackoff:", line) is not None)  # fmt: skip


def lose(pids: Collection[int | None], ports: Collection[int], victim: int, seconds: float) -> bool:
    """Lose what one busy connection of these processes sends to these ports.

    True: something was lost, and will be sent again.
    """
    busy = [flow for flow in flows(ports) if not flow.pids.isdisjoint(pids) and flow.idle_ms < _IDLE_MS]
    if not busy:
        return False
    port = busy[victim % len(busy)].port
    with _black_hole(port):
        time.sleep(seconds)
        return any(flow.port == port and flow.resent for flow in flows(ports)) or _closed_unsent(port)


@contextlib.contextmanager
def _black_hole(port: int) -> Iterator[None]:
    _ip("rule", "add", "pref", _PREFERENCE, "ipproto", "tcp", "sport", str(port), "blackhole")
    try:
        yield
    finally:
        _ip("rule", "del", "pref", _PREFERENCE)


def _closed_unsent(port: int) -> bool:
    """Whether its owner has closed the connection, and the kernel still sends what was in it."""
    command = ["ss", "-tinHO", "state", "fin-wait-1", "sport", "=", f":{port}"]
    return "backoff:" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
