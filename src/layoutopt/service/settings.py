"""How a server runs, and what it refuses."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from layoutopt.errors import InputError

LOOPBACK = ("localhost",)


@dataclass(frozen=True)
class Settings:
    """Bounds of a server. ``token`` None: no authentication, loopback or a socket alone."""

    workers: int = 2
    queue: int = 32
    """Requests that may wait beside those that are worked on; then 429."""
    most_seconds: float = 30.0
    """Time limit of a search, and the most that a request may ask for."""
    most_body_bytes: int = 1 << 20
    token: str | None = None


def refuse_open_host(host: str, token: str | None) -> None:
    """Raises InputError for a host that others can reach, without a token."""
    if token or host in LOOPBACK:
        return
    try:
        inside = ipaddress.ip_address(host).is_loopback
    except ValueError:
        inside = False
    if not inside:
        raise InputError(
            f"--host {host} can be reached by others: set LAYOUTOPT_TOKEN, which requests then "
            "bring as a bearer token",
            field="host",
            value=host,
            nearest=("127.0.0.1",),
        )
