"""layoutopt serve"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from layoutopt.cli.options import text_option
from layoutopt.errors import InputError, ToolError

_MOST = 1 << 30


@click.command("serve", short_help="solve and estimate over HTTP, warm.")
@text_option("--socket", metavar="PATH", help="Unix socket to listen on.")
@text_option("--port", metavar="N", help="TCP port to listen on. [8425 where no socket is given]")
@text_option("--host", metavar="HOST", help="Address of the port. [127.0.0.1]")
@text_option("--workers", metavar="N", help="Worker processes. [one a core]")
@text_option("--queue", metavar="N", help="Requests that may wait; then 429. [32]")
@text_option("--time-limit", metavar="S", help="Most seconds of a search. [30]")
@text_option("--max-body", metavar="BYTES", help="Largest request. [1Mi]")
def command(socket: str | None, port: str | None, host: str | None, **given: Any) -> int:
    """Answers POST /solve and /estimate with JSON until it is stopped.

    \b
    layoutopt serve --socket /run/layoutopt.sock
    curl --unix-socket /run/layoutopt.sock localhost/solve -d '{"model": "70B", "gpus": 512}'

    Options of a request are those of the commands. /healthz, /metrics (Prometheus), /docs and
    /openapi.json are there too. A host that others can reach needs LAYOUTOPT_TOKEN in the
    environment, which requests then bring as a bearer token. Needs the serve extra.
    """
    if socket is not None and (port is not None or host is not None):
        raise InputError("--socket and --port exclude each other", field="socket", value=socket)
    try:
        import uvicorn

        from layoutopt.service.app import make_app
    except ImportError as error:
        raise ToolError(f"{error.name} is not installed: pip install 'layoutopt[serve]'") from error
    from layoutopt.service.settings import Settings, refuse_open_host

    token = os.environ.get("LAYOUTOPT_TOKEN") or None
    address = host or "127.0.0.1"
    if socket is None:
        refuse_open_host(address, token)
    elif not Path(socket).absolute().parent.is_dir():
        raise InputError(f"--socket {socket} is in no folder that exists", field="socket")
    usual = Settings()
    settings = Settings(
        workers=_count(given, "workers", os.cpu_count() or usual.workers),
        queue=_count(given, "queue", usual.queue, least=0),
        most_seconds=_seconds(given["time_limit"], usual.most_seconds),
        most_body_bytes=_count(given, "max_body", usual.most_body_bytes),
        token=token,
    )
    number = _count({"port": port}, "port", 8425, most=65_535)
    where = {"uds": socket} if socket else {"host": address, "port": number}
    uvicorn.run(make_app(settings), log_level="warning", **where)
    return 0


def _count(
    given: dict[str, Any], name: str, default: int, *, least: int = 1, most: int = _MOST
) -> int:
    from layoutopt.inputs.numbers import read_count

    value = given.get(name)
    return default if value is None else read_count(value, name, least=least, most=most)


def _seconds(value: str | None, default: float) -> float:
    from layoutopt.inputs.numbers import read_seconds

    return default if value is None else read_seconds(value, "time_limit", bare=True)
