"""The socket a server listens on: bound before anything slow is imported, or handed down by a parent process."""

from __future__ import annotations

import socket
import sys

from bertie.errors import InputError
from bertie.serve.settings import Settings


def bind(settings: Settings) -> socket.socket:
    """A socket at the host and port of the settings, ready to be listened on."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        sock.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"The server cannot listen on {settings.host}, port {settings.port}: {reason}.",
            "Choose another with --host and --port; port 0 takes any free one.",
        ) from None
    sock.set_inheritable(True)
    return sock


def beside(sock: socket.socket) -> socket.socket:
    """Another socket at the same address: the kernel deals out connections among those that listen there.

    Only a socket that was bound alone is given company, so a second server on the port is still an error.
    """
    if sys.platform != "linux":  # elsewhere only the last one would be given any
        return sock.dup()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    other = socket.socket(sock.family, socket.SOCK_STREAM)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    other.bind(sock.getsockname())
    return other


def take_socket(fd: int) -> socket.socket:
    """A socket that a parent process has bound."""
    return socket.socket(fileno=fd)


def address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
