"""Which API servers are new enough, and what happens where that cannot be found out."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from flyball_kube import server_version
from flyball_kube.backoff import Backoff
from flyball_kube.credentials import Configuration
from flyball_kube.server_version import ServerTooOld, require_ordered_versions
from flyball_kube.session import ApiSession
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.hardware_file import create_node_file


@asynccontextmanager
async def server(*answers: tuple[str, bytes]) -> AsyncIterator[tuple[ApiSession, Sequence[str]]]:
    """A session to a server that gives these answers, one a request, and the requests that it saw; "" cuts the line."""
    waiting, requests = list(answers), []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode())
        status, body = waiting.pop(0)
        if status:
            writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status.encode(), len(body)) + body)
            await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    configuration = Configuration(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    async with listening, ApiSession(configuration) as session:
        yield session, requests


def version(major: str, minor: str) -> tuple[str, bytes]:
    return "200 OK", json.dumps({"major": major, "minor": minor, "gitVersion": f"v{major}.{minor}.0"}).encode()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_version, "Backoff", lambda: Backoff(0.001, 0.002))


async def test_the_real_api_server_is_new_enough(way: Any) -> None:
    await require_ordered_versions(way.direct)


@pytest.mark.parametrize(("major", "minor"), [("1", "35"), ("1", "36+"), ("1", "100"), ("2", "0")])
async def test_a_version_that_promises_the_order_passes(
    major: str, minor: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with server(version(major, minor)) as (session, requests):
        await require_ordered_versions(session)
    assert requests == ["GET /version HTTP/1.1"]
    assert caplog.records == []


@pytest.mark.parametrize(("major", "minor"), [("1", "34"), ("1", "34+"), ("1", "9"), ("0", "99")])
async def test_an_older_version_is_refused_with_what_is_needed(major: str, minor: str) -> None:
    async with server(version(major, minor)) as (session, _):
        with pytest.raises(
            ServerTooOld, match=r"is Kubernetes \d+\.\d+ \(v.*\), and Kubernetes 1\.35 or later is needed"
        ):
            await require_ordered_versions(session)


async def test_it_asks_again_until_there_is_an_answer() -> None:
    answers = [("", b""), ("503 Service Unavailable", b"{}"), ("429 Too Many Requests", b"{}"), version("1", "34")]
    async with server(*answers) as (session, requests):
        with pytest.raises(ServerTooOld):
            await require_ordered_versions(session)
    assert len(requests) == len(answers)


@pytest.mark.parametrize("answer", [("403 Forbidden", b"{}"), ("404 Not Found", b""), ("200 OK", b'{"major": "one"}')])
async def test_a_version_that_is_not_shown_is_a_warning_only(
    answer: tuple[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async with server(answer) as (session, _):
        await require_ordered_versions(session)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "1.35 or later" in record.getMessage()


class _OldServer(BaseHTTPRequestHandler):
    """Kubernetes 1.34, as far as /version goes; it has nothing else."""

    def do_GET(self) -> None:
        status, body = (200, version("1", "34")[1]) if self.path == "/version" else (404, b"{}")
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        [
            "agent",
            "run",
            "--node-name",
            "a",
            "--driver",
            "simulated",
            "--hardware-dir",
            ".",
            "--journal-dir",
            "journal",
        ],
        ["operator", "run", "--probe-port", "0"],
    ],
    ids=["agent", "operator"],
)
def test_agent_and_operator_end_on_an_older_server_and_say_what_is_needed(arguments: list[str], tmp_path: Path) -> None:
    create_node_file(tmp_path / "a.gpus", [CATALOGUE["NVIDIA-A100-SXM4-40GB"]])
    old = ThreadingHTTPServer(("127.0.0.1", 0), _OldServer)
    threading.Thread(target=old.serve_forever, daemon=True).start()
    user = {"name": "u", "user": {}}
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{old.server_port}"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    kubeconfig = {"clusters": [cluster], "users": [user], "contexts": [context], "current-context": "x"}
    (tmp_path / "kubeconfig").write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **kubeconfig}))
    command = [sys.executable, "-c", "from flyball_cli.main import main; main()", *arguments]
    command += ["--kubeconfig", "kubeconfig", "--metrics-port", "-1"]
    try:
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    finally:
        old.shutdown()
        old.server_close()
    assert ended.returncode != 0
    assert "the API server is Kubernetes 1.34 (v1.34.0), and Kubernetes 1.35 or later is needed" in ended.stderr
