"""The sockets that the server listens on."""

import contextlib
import ipaddress
import socket
import sys

from dragoman.errors import ConfigError

# Connections that may wait to be accepted.
BACKLOG = 2048
_UNSENT_BYTES = 16 * 1024


def is_local(host: str) -> bool:
    """Tell whether only this machine can reach an address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]
    except (OSError, ValueError):
        raise ConfigError(
            f"listen: {host} is neither an address nor a known name; write 127.0.0.1:8000",
            remedy="--listen 127.0.0.1:8000",
        ) from None
    return all(address.is_loopback for address in addresses)


def url_of(scheme: str, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def shared_listeners(listener: socket.socket, count: int) -> list[socket.socket]:
    """Return a listener for each of several processes. On one common socket, the process that wakes
    first takes all waiting connections; with a socket each, the kernel distributes them."""
    if sys.platform != "linux":
        return [listener, *(listener.dup() for _ in range(count - 1))]
    # Only after we listen: from then on no other program can take the address.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    host, port = listener.getsockname()[:2]
    return [listener, *(listen(host, port, is_shared=True) for _ in range(count - 1))]


def listen(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Declared as TCP, because asyncio sends small answers at once only on such sockets.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    lowest = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if lowest is not None:
        # What a reader has not taken stays a position in the log. The kernel's buffers would hold
        # megabytes for each client that stopped reading.
        listener.setsockopt(socket.IPPROTO_TCP, lowest, _UNSENT_BYTES)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"{host}:{port}: {error.strerror}; --listen {host}:0 takes a free port",
            remedy=f"--listen {host}:0",
        ) from None
    return listener
