"""The HTTP service as clients meet it: a real process on a free port, and one on a socket."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from layoutopt import solve
from layoutopt.errors import InputError
from layoutopt.service.settings import refuse_open_host
from layoutopt.service.work import answer, refuse_files
from tests.cli.schemas import check

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")

BIN = Path(sys.executable).with_name("layoutopt")
QUESTION = {"model": "8B", "gpus": 8, "top": 0}


@contextmanager
def serving(*options: str, **environment: str) -> Iterator[str]:
    """A server's address; it is ended afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(BIN), "serve", "--port", str(port), *options]
    process = subprocess.Popen(words, env={**os.environ, **environment})
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                httpx.get(f"{address}/healthz")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving("--workers", "2", "--queue", "40") as address:
        yield address


def post(address: str, path: str, body: object, **options: Any) -> Any:
    return httpx.post(f"{address}{path}", json=body, timeout=300, **options)


def test_solve_gives_the_answer_of_the_command(server: str) -> None:
    done = post(server, "/solve", QUESTION)
    assert done.status_code == 200
    found = done.json()
    check(found, "plan")
    mine = solve(model="8B", gpus=8, top=0).to_dict()
    for answered in (found, mine):
        answered.pop("search")
        answered["request"].pop("time_limit_s")
        answered["request"]["filled"] = []
    assert found == mine


def test_twenty_clients_lose_nothing(server: str) -> None:
    batches = [8 * (1 + number % 5) for number in range(20)]
    with ThreadPoolExecutor(20) as clients:
        found = list(
            clients.map(
                lambda batch: post(server, "/solve", {**QUESTION, "global_batch": batch}), batches
            )
        )
    assert [done.status_code for done in found] == [200] * 20
    assert [done.json()["request"]["global_batch"] for done in found] == batches
    steps = {done.json()["request"]["global_batch"]: done.json()["step"] for done in found}
    assert all(
        done.json()["step"] == steps[batch] for done, batch in zip(found, batches, strict=True)
    )


def test_estimate_and_an_inline_cluster(server: str) -> None:
    cluster = {
        "name": "ours",
        "gpu": "h100",
        "gpus_per_node": 8,
        "nodes": 2,
        "levels": [
            {"name": "nvlink", "gpus": 8, "bandwidth_per_gpu_one_way": "450GB/s", "latency": "2us"},
            {"name": "ib", "gpus": 16, "bandwidth_per_gpu_one_way": "50GB/s", "latency": "5us"},
        ],
    }
    body = {"model": "8B", "cluster": cluster, "layout": {"tp": 2}}
    done = post(server, "/estimate", body)
    assert done.status_code == 200, done.text
    assert done.json()["layout"]["dp"] == 8


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"gpus": 8}, "body"),
        ({"model": "8B", "gpus": "many"}, "gpus"),
        ({"model": "8B", "gpus": 8, "gpu": "h1000"}, "gpu"),
        ({"model": "8B", "gpus": 8, "bogus": 1}, "body"),
        ({"model": "/etc/passwd", "gpus": 8}, "model"),
        ({"model": "-", "gpus": 8}, "model"),
        ([], "body"),
    ],
)
def test_bad_input_is_422_in_our_words(server: str, body: object, field: str) -> None:
    done = post(server, "/solve", body)
    assert done.status_code == 422
    check(done.json(), "error")
    assert done.json()["field"] == field


def test_other_refusals(server: str) -> None:
    assert httpx.post(f"{server}/solve", content=b"{").status_code == 422
    assert httpx.post(f"{server}/solve", content=b" " * (2 << 20)).status_code == 413
    assert httpx.get(f"{server}/solve").status_code == 405
    missing = httpx.get(f"{server}/none")
    assert missing.status_code == 404
    check(missing.json(), "error")


def test_metrics_count(server: str) -> None:
    post(server, "/solve", {})
    text = httpx.get(f"{server}/metrics").text
    assert 'layoutopt_requests_total{code="422",path="/solve"}' in text
    assert "layoutopt_request_seconds_bucket" in text


def test_a_token_is_asked_for() -> None:
    with serving("--workers", "1", LAYOUTOPT_TOKEN="secret") as address:
        assert post(address, "/solve", {}).status_code == 401
        wrong = {"Authorization": "Bearer no"}
        assert post(address, "/solve", {}, headers=wrong).status_code == 401
        right = {"Authorization": "Bearer secret"}
        assert post(address, "/solve", {}, headers=right).status_code == 422


def test_a_full_queue_says_so() -> None:
    with serving("--workers", "1", "--queue", "1") as address, ThreadPoolExecutor(8) as clients:
        found = list(clients.map(lambda _: post(address, "/solve", QUESTION), range(8)))
        codes = sorted(done.status_code for done in found)
    assert set(codes) == {200, 429}
    full = next(done for done in found if done.status_code == 429)
    assert full.headers["retry-after"] == "1"
    check(full.json(), "error")


def test_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    process = subprocess.Popen([BIN, "serve", "--socket", path, "--workers", "1"])
    try:
        for _ in range(600):
            if path.exists():
                break
            time.sleep(0.1)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://here/healthz").json()["status"] == "ok"
    finally:
        process.terminate()
        process.wait(timeout=30)


def test_nothing_wrong_is_found_by_random_requests(server: str) -> None:
    """Requests made from the published OpenAPI, right ones and wrong ones.

    Left out is the check that every request which fits the schema succeeds: that a model of such a
    name exists, or that its layers divide, no schema can say.
    """
    schemathesis = pytest.importorskip("schemathesis")
    schema = schemathesis.openapi.from_url(f"{server}/openapi.json")
    mode = schemathesis.GenerationMode
    for result in schema.get_all_operations():
        wrong = [mode.NEGATIVE] if result.ok().body else []
        for kind in (mode.POSITIVE, *wrong):
            holds(result.ok().as_strategy(generation_mode=kind), schemathesis.checks)


def holds(strategy: Any, checks: Any) -> None:
    from hypothesis import HealthCheck, given, settings

    @given(case=strategy)
    @settings(
        max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    def every_case(case: Any) -> None:
        response = case.call(timeout=120)
        case.validate_response(response, excluded_checks=[checks.positive_data_acceptance])

    every_case()


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "example.com", "::"])
def test_an_open_host_needs_a_token(host: str) -> None:
    with pytest.raises(InputError, match="set LAYOUTOPT_TOKEN"):
        refuse_open_host(host, None)
    refuse_open_host(host, "secret")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_loopback_needs_none(host: str) -> None:
    refuse_open_host(host, None)


@pytest.mark.parametrize(
    "options",
    [{"model": "x.yaml"}, {"cluster": "a/b"}, {"layout": "plan.json"}, {"from_launch": "x"}],
)
def test_no_file_of_the_server_is_read(options: dict[str, str]) -> None:
    with pytest.raises(InputError, match="would read a file of the server"):
        refuse_files(options)


def test_a_fault_of_ours_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("layoutopt.api.answer_solve", broken)
    code, text = answer("solve", QUESTION, 1.0)
    assert code == 500
    check(json.loads(text), "error")
