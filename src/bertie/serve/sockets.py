"""The socket a server listens on: bound before anything slow is imported, or handed down by a parent process."""

from __future__ import annotations

import socket

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


def take_socket(fd: int) -> socket.socket:
    """A socket that a parent process has bound."""
    return socket.socket(fileno=fd)


def address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
