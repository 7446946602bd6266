"""Networks of their own for replicas, so that a cable can be cut as in a machine room: packets end
nowhere, and neither side is told. Linux, and root; elsewhere the proxy goes silent instead."""

import asyncio
import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Generator, Sequence
from pathlib import Path

from dragoman.testing.load import HOST
from proof.cluster.cable import Connect, Stream

# Of the private range that machines use least.
_NETWORK = "10.213"
_PLACE = Path("/run/netns")
_NEW_NETWORK = 0x40000000
_WITHIN = 30.0


class NamespaceRefused(Exception):
    """This machine does not let us."""


class Switch:
    """What the cables of all namespaces of a run end in; this machine is on it too."""

    def __init__(self) -> None:
        # Others may run the same proof at the same time.
        number = os.getpid()
        self.name = f"dgm{number % 10_000_000}"
        self.network = f"{_NETWORK}.{number % 250}"
        self.host = f"{self.network}.1"

    def make(self) -> None:
        """Make it; raises `NamespaceRefused`."""
        _ip("link", "add", self.name, "type", "bridge")
        _ip("addr", "add", f"{self.host}/24", "dev", self.name)
        _ip("link", "set", self.name, "up")

    def remove(self) -> None:
        """Remove it."""
        with contextlib.suppress(NamespaceRefused):
            _ip("link", "del", self.name)


class Namespace:
    """One network, joined to the switch by one cable."""

    def __init__(self, switch: Switch, number: int) -> None:
        self.host = switch.host
        self.name = f"{switch.name}-{number}"
        self._switch = switch
        self._plug = f"{switch.name}p{number}"
        self._guest = f"{switch.network}.{number + 2}"

    def make(self) -> None:
        """Make it; raises `NamespaceRefused`."""
        _ip("netns", "add", self.name)
        _ip("link", "add", self._plug, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("link", "set", self._plug, "master", self._switch.name, "up")
        within = ("-n", self.name)
        _ip(*within, "addr", "add", f"{self._guest}/24", "dev", "eth0")
        _ip(*within, "link", "set", "eth0", "up")
        _ip(*within, "link", "set", "lo", "up")

    def remove(self) -> None:
        """Remove it with its cable."""
        with contextlib.suppress(NamespaceRefused):
            _ip("netns", "del", self.name)

    def command(self, words: Sequence[str]) -> list[str]:
        """Return what runs a command in it."""
        return ["ip", "netns", "exec", self.name, *words]

    def cut(self) -> None:
        """Pull the cable at the switch: both ends keep their addresses, and what they send ends
        nowhere."""
        _ip("link", "set", self._plug, "down")

    def restore(self) -> None:
        """Put the cable back."""
        _ip("link", "set", self._plug, "up")

    def to_port(self, port: int) -> Connect:
        """Return what connects to a port of its loopback."""

        async def connect() -> Stream:
            opened = await asyncio.to_thread(self._socket)
            opened.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(opened, (HOST, port))
                return await asyncio.open_connection(sock=opened)
            except BaseException:
                opened.close()
                raise

        return connect

    def _socket(self) -> socket.socket:
        """Return a socket of that network: it belongs to the one in which it was made."""
        libc = ctypes.CDLL(None, use_errno=True)
        ours = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(_PLACE / self.name, os.O_RDONLY)
        try:
            if libc.setns(there, _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")
            try:
                return socket.socket()
            finally:
                libc.setns(ours, _NEW_NETWORK)
        finally:
            os.close(ours)
            os.close(there)


@contextlib.contextmanager
def namespaces(count: int) -> Generator[list[Namespace]]:
    """Make so many for a while; none where the machine does not let us."""
    switch = Switch()
    made: list[Namespace] = []
    try:
        try:
            switch.make()
            for n in range(count):
                one = Namespace(switch, n)
                made.append(one)
                one.make()
        except NamespaceRefused:
            while made:
                made.pop().remove()
        yield made
    finally:
        for one in made:
            one.remove()
        switch.remove()


def _ip(*words: str) -> None:
    if shutil.which("ip") is None:
        raise NamespaceRefused("there is no `ip`")
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=_WITHIN)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NamespaceRefused(str(error)) from None
    if done.returncode:
        raise NamespaceRefused(done.stderr.strip())
