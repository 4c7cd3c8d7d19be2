"""The operator as a process that cannot reach its API server: it stays, says so, and ends when asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from flyball_testbed.controlplane.ports import free_port

from tests.support.waiting import until

KUBECONFIG = """
{"apiVersion": "v1", "kind": "Config", "current-context": "c",
 "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
 "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:%d"}}], "users": [{"name": "u", "user": {}}]}
"""


def probe(port: int, path: str) -> tuple[int, dict[str, str]] | None:
    """The status and the JSON of one probe; None where nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return None


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """An operator without an API server at its address and without a user's name; and the port of its probes."""
    api_server_port, probe_port = free_port(), free_port()
    (tmp_path / "kubeconfig").write_text(KUBECONFIG % api_server_port)
    nameless = {key: value for key, value in os.environ.items() if key not in {"USER", "LOGNAME", "LNAME", "USERNAME"}}
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", "from flyball_cli.main import main; main()", "operator", "run"),
            *("--kubeconfig", str(tmp_path / "kubeconfig"), "--probe-port", str(probe_port), "--metrics-port", "0"),
        ],
        env=nameless,
        stderr=(tmp_path / "log").open("wb"),
    )
    yield process, probe_port
    process.kill()
    process.wait()


@pytest.mark.slow
async def test_without_an_api_server_it_is_alive_not_ready_and_ends_when_asked(
    lonely: tuple[subprocess.Popen[bytes], int], tmp_path: Path
) -> None:
    process, port = lonely
    await until(lambda: probe(port, "/healthz") is not None or process.poll() is not None)
    log = (tmp_path / "log").read_text
    assert process.poll() is None, log()
    assert probe(port, "/healthz") == (200, {"state": "standing by", "cycles": 0})
    status, answer = probe(port, "/readyz") or (0, {})
    assert status == 503
    assert "have not been listed yet: does the API server answer" in answer["reason"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0, log()
    assert "aiohttp.access" not in log()
