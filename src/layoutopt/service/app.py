"""The HTTP application: /solve, /estimate, /healthz, /metrics, and its OpenAPI."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import AsyncIterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from jsonschema import Draft202012Validator
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException

from layoutopt import __version__
from layoutopt.errors import InputError, InternalError, LayoutoptError
from layoutopt.report.errors import error_text
from layoutopt.service.openapi import components, operation, request_schema
from layoutopt.service.pool import Full, Pool, TookTooLong
from layoutopt.service.settings import Settings

_OTHER = {404: "no such path", 405: "the path takes another method"}


class Metrics:
    """Counts and times, in Prometheus' text format."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "layoutopt_requests", "Requests by path and HTTP status", ["path", "code"],
            registry=self.registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "layoutopt_request_seconds", "Seconds from arrival to answer", ["path"],
            registry=self.registry,
        )  # fmt: skip
        self.pending = Gauge(
            "layoutopt_pending", "Requests that wait or are worked on", registry=self.registry
        )


def make_app(settings: Settings) -> FastAPI:
    """The application; its workers start with it and end with it."""
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.pool = Pool(settings)
        metrics.pending.set_function(lambda: app.state.pool.pending)
        yield
        app.state.pool.close()

    app = FastAPI(title="layoutopt", version=__version__, lifespan=lifespan, redoc_url=None)

    async def answered(command: str, request: Request) -> Response:
        began = time.monotonic()
        code, text = await _answered(command, request, settings)
        metrics.requests.labels(f"/{command}", str(code)).inc()
        metrics.seconds.labels(f"/{command}").observe(time.monotonic() - began)
        headers = {"Retry-After": "1"} if code == 429 else {}
        if code == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(text, code, headers, media_type="application/json")

    @app.post("/solve", openapi_extra=operation("solve"), response_class=Response)
    async def solve(request: Request) -> Response:
        """The best layout of a job, with proof: the options of ``layoutopt solve``."""
        return await answered("solve", request)

    @app.post("/estimate", openapi_extra=operation("estimate"), response_class=Response)
    async def estimate(request: Request) -> Response:
        """What one layout needs and takes: the options of ``layoutopt estimate``."""
        return await answered("estimate", request)

    @app.get("/healthz")
    async def healthz() -> dict[str, Any]:
        """Whether requests are taken."""
        return {"status": "ok", "version": __version__, "pending": app.state.pool.pending}

    @app.get("/metrics", response_class=Response)
    async def metrics_text() -> Response:
        """Prometheus' text format."""
        return Response(generate_latest(metrics.registry), media_type="text/plain; version=0.0.4")

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> Response:
        text = error_text(InputError(_OTHER.get(error.status_code, str(error.detail))))
        return Response(text, error.status_code, error.headers, media_type="application/json")

    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """OpenAPI with the published schemas as components."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            schema.setdefault("components", {})["schemas"] = components()
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


_VALIDATORS = {
    command: Draft202012Validator(request_schema(command)) for command in ("solve", "estimate")
}


async def _answered(command: str, request: Request, settings: Settings) -> tuple[int, str]:
    """Status and text; every way to fail is an answer of schema layoutopt.error/1."""
    if not _allowed(request, settings.token):
        return 401, error_text(InputError("a bearer token is needed (Authorization: Bearer ...)"))
    body = await _body(request, settings.most_body_bytes)
    if body is None:
        most = settings.most_body_bytes
        return 413, error_text(InputError(f"the body has more than {most:,} bytes", field="body"))
    try:
        options = _options(command, body)
        pool: Pool = request.app.state.pool
        return await pool.run(command, options)
    except InputError as error:
        return 422, error_text(error)
    except Full:
        return 429, error_text(LayoutoptError(f"{settings.queue} requests wait already"))
    except TookTooLong:
        return 503, error_text(LayoutoptError("the request took longer than its limit"))
    except BrokenProcessPool:
        return 500, error_text(InternalError("a worker died twice on this request"))


def _allowed(request: Request, token: str | None) -> bool:
    if token is None:
        return True
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # Bytes: header text may hold what compare_digest refuses as str.
    same = hmac.compare_digest(given.strip().encode(), token.encode())
    return scheme.lower() == "bearer" and same


async def _body(request: Request, most: int) -> bytes | None:
    """The body; None as soon as it is too large."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            return None
        parts.append(part)
    return b"".join(parts)


def _options(command: str, body: bytes) -> dict[str, Any]:
    """The options of a body; raises InputError for what is no object of them."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is not JSON: {str(error)[:200]}", field="body") from error
    wrong = next(iter(_VALIDATORS[command].iter_errors(value)), None)
    if wrong is not None:
        field = ".".join(map(str, wrong.absolute_path)) or "body"
        raise InputError(f"{field}: {wrong.message[:300]}", field=field)
    options: dict[str, Any] = value
    return options
