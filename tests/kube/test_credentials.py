"""Credentials: what kubeconfigs say, what is missing in one line, tokens that are replaced under a running process."""

from __future__ import annotations

import base64
import json
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import trustme
from flyball_kube import credentials
from flyball_kube.credentials import (
    TOKEN_FILE_SECONDS,
    CredentialsError,
    ExecToken,
    TokenFile,
    load_configuration,
    ssl_context,
)

FLYBALL = str(Path(sysconfig.get_path("scripts")) / "flyball")


def kubeconfig(folder: Path, *, name: str = "kubeconfig", cluster: Any = None, user: Any = None, **top: Any) -> Path:
    path = folder / name
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster or {"server": "https://k:6443/"}}],
        "users": [{"name": "u", "user": user or {"token": "secret"}}],
    }
    path.write_text(json.dumps({**content, **top}))
    return path


def exec_plugin(folder: Path, script: str) -> dict[str, Any]:
    path = folder / "plugin"
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"command": str(path), "args": ["a"], "env": [{"name": "WHO", "value": "me"}], "apiVersion": "v1"}


async def test_a_token_file_is_read_again_by_a_clock_that_nobody_sets(tmp_path: Path) -> None:
    now = [1000.0]
    path = tmp_path / "token"
    path.write_text("one\n")
    tokens = TokenFile(path, monotonic=lambda: now[0])
    assert await tokens.token() == "one"
    path.write_text("two")
    now[0] += TOKEN_FILE_SECONDS / 2
    assert await tokens.token() == "one"
    now[0] += TOKEN_FILE_SECONDS / 2
    assert await tokens.token() == "two"
    path.unlink()  # while it is replaced, the one of before is as good as it was
    now[0] += TOKEN_FILE_SECONDS
    assert await tokens.token() == "two"
    path.write_text("three")
    assert await tokens.token() == "three"


async def test_a_token_that_was_refused_is_read_again_at_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    tokens = TokenFile(path, monotonic=lambda: 0.0)
    assert await tokens.token() == "one"
    path.write_text("two")
    tokens.refused()
    assert await tokens.token() == "two"


async def test_a_kubeconfigs_token_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("first")
    configuration = load_configuration(kubeconfig(tmp_path, user={"tokenFile": "t", "token": "old"}))
    assert configuration.host == "https://k:6443"
    assert await configuration.tokens.token() == "first"
    (tmp_path / "t").write_text("second")
    configuration.tokens.refused()
    assert await configuration.tokens.token() == "second"


async def test_certificates_come_from_files_beside_it_or_in_it(tmp_path: Path) -> None:
    authority = trustme.CA()
    client = authority.issue_cert("client")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    chain = b"".join(pem.bytes() for pem in client.cert_chain_pems)
    (tmp_path / "client.key").write_bytes(client.private_key_pem.bytes())
    user = {"client-certificate-data": base64.b64encode(chain).decode(), "client-key": "client.key"}
    cluster = {
        "server": "https://k",
        "certificate-authority": "ca.crt",
        "tls-server-name": "api",
        "proxy-url": "http://p",
    }
    configuration = load_configuration(kubeconfig(tmp_path, cluster=cluster, user=user))
    assert (configuration.server_name, configuration.proxy) == ("api", "http://p")
    context = ssl_context(configuration)
    assert not isinstance(context, bool)
    assert len(context.get_ca_certs()) == 1
    configuration.client_key = "no key"
    with pytest.raises(CredentialsError, match="https://k: certificates: "):
        ssl_context(configuration)


async def test_an_exec_plugin_is_asked_again_before_its_token_ends(tmp_path: Path) -> None:
    plugin = exec_plugin(
        tmp_path,
        "import json, os, sys\n"
        "n = len(open(__file__ + '.log', 'a+').readlines()); open(__file__ + '.log', 'a').write('x\\n')\n"
        "n = len(open(__file__ + '.log').readlines())\n"
        "assert json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind'] == 'ExecCredential'\n"
        "print(json.dumps({'status': {'token': f\"{os.environ['WHO']}-{sys.argv[1]}-{n}\",\n"
        "                             'expirationTimestamp': '2999-01-01T00:00:00Z'}}))\n",
    )
    now = [0.0]
    tokens = ExecToken(plugin, "kubeconfig", monotonic=lambda: now[0])
    assert await tokens.token() == "me-a-1"
    assert await tokens.token() == "me-a-1"
    now[0] += 1e12  # past its end, whatever the wall clock says
    assert await tokens.token() == "me-a-2"
    assert isinstance(load_configuration(kubeconfig(tmp_path, user={"exec": plugin})).tokens, ExecToken)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("raise SystemExit(3)", "ended with 3"),
        ("print('hello')", "no ExecCredential"),
        ("print('{\"status\": {}}')", "has no token"),
    ],
)
async def test_an_exec_plugin_that_fails_is_one_line(tmp_path: Path, script: str, words: str) -> None:
    with pytest.raises(CredentialsError, match=f"k: exec plugin .*: .*{words}"):
        await ExecToken(exec_plugin(tmp_path, script), "k").token()


def test_several_kubeconfigs_are_merged_as_kubectl_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kubeconfig(tmp_path, name="first", clusters=[], contexts=[])
    second = kubeconfig(tmp_path, name="second", users=[])
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'gone'}:{first}:{second}")
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT_FOLDER", tmp_path / "no-pod")
    assert load_configuration().host == "https://k:6443"


def test_in_a_pod_the_service_account_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("pem")
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT_FOLDER", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert load_configuration().host == "https://[fd00::1]:443"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(CredentialsError, match="KUBERNETES_SERVICE_HOST"):
        load_configuration()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"current-context": ""}, "current-context is not set"),
        ({"current-context": "x"}, "there is no context 'x'"),
        ({"users": 7}, "users is 7, and must be a list"),
        ({"clusters": [None, 3]}, "there is no cluster 'k'"),
        ({"cluster": {"certificate-authority": "x"}}, "cluster k: server is missing"),
        ({"user": {"auth-provider": {"name": "oidc"}}}, "user u: auth-provider is not supported"),
        ({"user": {"client-certificate-data": "%"}}, "client-certificate-data is not base64"),
        ({"user": {"client-key": "gone.key"}}, "gone.key: No such file"),
        ({"user": {"exec": {"args": []}}}, "command is missing"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_why(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(CredentialsError, match=words):
        load_configuration(kubeconfig(tmp_path, **change))


@pytest.mark.parametrize(
    ("content", "words"), [(b"a: [", "no YAML: line 1, column 5: "), (b"17", "no kubeconfig"), (b"\xff", "no text")]
)
def test_a_file_that_is_no_kubeconfig_says_so(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "k").write_bytes(content)
    with pytest.raises(CredentialsError, match=f"{tmp_path / 'k'}: {words}"):
        load_configuration(tmp_path / "k")


@pytest.mark.parametrize("who", [["agent", "run", "--node-name", "n"], ["operator", "run"]])
def test_a_missing_kubeconfig_ends_a_process_with_one_line(tmp_path: Path, who: list[str]) -> None:
    command = [FLYBALL, *who, "--kubeconfig", str(tmp_path / "gone")]
    command += ["--journal-dir", str(tmp_path)] if who[0] == "agent" else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.strip() == f"flyball {who[0]} run: {tmp_path / 'gone'}: No such file or directory"


def test_the_session_imports_no_generated_client() -> None:
    """The official client's 400 modules are 21 MiB in every agent."""
    code = "import sys, flyball_kube.session; assert not [m for m in sys.modules if m.startswith('kubernetes')]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_namespace_is_the_contexts(tmp_path: Path) -> None:
    assert load_configuration(kubeconfig(tmp_path)).namespace == "default"
    contexts = [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "research"}}]
    assert load_configuration(kubeconfig(tmp_path, contexts=contexts)).namespace == "research"
