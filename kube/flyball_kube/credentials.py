"""Where the API server is and how to prove who asks: a kubeconfig, or a pod's service account.

Read here and not by the official client, whose configuration loader imports 400 modules (21 MiB in every process) and
judges the age of a pod's token by the wall clock, so that a clock set back by hours lets the token end. Every age here is
by the monotonic clock. Of a kubeconfig's ways to authenticate there are tokens, token files, client certificates and exec
plugins; the built-in providers and passwords that Kubernetes itself has given up are refused by name.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from flyball_kube.yaml_errors import yaml_problem

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Kubelets replace a pod's token when a fifth of its life is left, at the least two minutes before it ends.
TOKEN_FILE_SECONDS = 30.0
# A plugin's token is asked for anew this long before it ends.
EXEC_EARLY_SECONDS = 30.0
EXEC_TIMEOUT_SECONDS = 30.0
MAX_FILE_BYTES = 4 * 1024 * 1024
DEFAULT_NAMESPACE = "default"


class CredentialsError(Exception):
    """The API server's address or the credentials for it cannot be found or read; one line says what and where."""


class Tokens(Protocol):
    """Gives the bearer token for the next request."""

    async def token(self) -> str:
        """The token; "" where requests carry none. Raises CredentialsError."""
        ...

    def refused(self) -> None:
        """The API server did not take the last one: it is not given again without another look."""
        ...


class FixedToken:
    """One token for ever, or none."""

    def __init__(self, token: str = "") -> None:
        self._token = token

    async def token(self) -> str:
        return self._token

    def refused(self) -> None:
        """There is no other one."""


class TokenFile:
    """A token in a file that somebody else replaces: read again when the last look is `TOKEN_FILE_SECONDS` old.

    While the file cannot be read, the token of before is given: it may still be good.
    """

    def __init__(self, path: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._monotonic = monotonic
        self._token = ""
        self._read_at: float | None = None

    async def token(self) -> str:
        now = self._monotonic()
        if self._read_at is None or now - self._read_at >= TOKEN_FILE_SECONDS:
            try:
                self._token, self._read_at = _read_token(self._path), now
            except CredentialsError:
                if not self._token:
                    raise
        return self._token

    def refused(self) -> None:
        self._read_at = None


class ExecToken:
    """A token by a kubeconfig's exec plugin (client.authentication.k8s.io), kept until shortly before it ends."""

    def __init__(
        self, exec_config: Mapping[str, Any], where: str, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._where = where
        self._monotonic = monotonic
        arguments = exec_config.get("args") or ()
        self._command = [str(exec_config.get("command") or ""), *map(str, arguments)]
        self._version = str(exec_config.get("apiVersion") or "")
        self._environment = {str(item["name"]): str(item["value"]) for item in exec_config.get("env") or ()}
        if not self._command[0]:
            raise CredentialsError(f"{where}: exec: command is missing")
        self._token = ""
        self._ends_at: float | None = None
        self._asking = asyncio.Lock()

    async def token(self) -> str:
        async with self._asking:
            if not self._token or (self._ends_at is not None and self._monotonic() >= self._ends_at):
                await self._ask()
        return self._token

    def refused(self) -> None:
        self._token = ""

    async def _ask(self) -> None:
        information = {"apiVersion": self._version, "kind": "ExecCredential", "spec": {"interactive": False}}
        environment = {**os.environ, **self._environment, "KUBERNETES_EXEC_INFO": json.dumps(information)}
        plugin = f"{self._where}: exec plugin {self._command[0]}"
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise CredentialsError(f"{plugin}: {error.strerror or error}") from error
        try:
            async with asyncio.timeout(EXEC_TIMEOUT_SECONDS):
                output, _ = await process.communicate()
        except TimeoutError as error:
            raise CredentialsError(f"{plugin}: no answer within {EXEC_TIMEOUT_SECONDS:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode != 0:
            raise CredentialsError(f"{plugin}: ended with {process.returncode}")
        self._take(output, plugin)

    def _take(self, output: bytes, plugin: str) -> None:
        try:
            status = json.loads(output)["status"]
            token, ends = status.get("token"), status.get("expirationTimestamp")
            left = None if ends is None else (datetime.fromisoformat(ends) - datetime.now(UTC)).total_seconds()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CredentialsError(f"{plugin}: the answer is no ExecCredential") from error
        if not isinstance(token, str) or not token:
            raise CredentialsError(
                f"{plugin}: the answer has no token (client certificates of plugins are not supported)"
            )
        self._token = token
        self._ends_at = None if left is None else self._monotonic() + left - EXEC_EARLY_SECONDS


@dataclass(slots=True)
class Configuration:
    """How to reach one API server. `authority` and the client's certificate and key are PEM; None: the system's, none.

    `namespace` is where commands look that are not told another one: the context's, or the pod's own.
    """

    host: str
    tokens: Tokens = field(default_factory=FixedToken)
    authority: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None
    verify: bool = True
    server_name: str | None = None
    proxy: str | None = None
    namespace: str = DEFAULT_NAMESPACE


def ssl_context(configuration: Configuration) -> ssl.SSLContext | bool:
    """The TLS context for a configuration; False where it names a plain HTTP address. Raises CredentialsError.

    Python 3.13 began to refuse certificate authorities without the extensions that RFC 5280 asks for. Clusters set up
    years ago have such ones, and every other Kubernetes client takes them, so that one flag is cleared; chain, dates and
    host name are verified all the same.
    """
    if not configuration.host.startswith("https"):
        return False
    try:
        context = ssl.create_default_context(cadata=configuration.authority)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if configuration.client_certificate:
            # OpenSSL takes a chain from a file only; nobody else can read this one, and it is gone at once.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(f"{configuration.client_certificate}\n{configuration.client_key or ''}\n")
                file.flush()
                context.load_cert_chain(file.name)
    except (ssl.SSLError, ValueError, OSError) as error:
        raise CredentialsError(f"{configuration.host}: certificates: {error}") from error
    if not configuration.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def load_configuration(kubeconfig: Path | str | None = None, context: str | None = None) -> Configuration:
    """The configuration of `kubeconfig`, else of the pod's service account, else of $KUBECONFIG or ~/.kube/config.

    Raises CredentialsError.
    """
    if kubeconfig is None and (SERVICE_ACCOUNT_FOLDER / "token").exists():
        return _of_the_pod()
    named = str(kubeconfig) if kubeconfig is not None else os.environ.get("KUBECONFIG", "")
    paths = [Path(path).expanduser() for path in named.split(os.pathsep) if path]
    return _of_kubeconfigs(paths or [Path("~/.kube/config").expanduser()], context)


def _of_the_pod() -> Configuration:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise CredentialsError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set, as they are in a pod")
    return Configuration(
        host=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        tokens=TokenFile(SERVICE_ACCOUNT_FOLDER / "token"),
        authority=_read(SERVICE_ACCOUNT_FOLDER / "ca.crt"),
        namespace=_pods_namespace(),
    )


def _pods_namespace() -> str:
    try:
        return _read(SERVICE_ACCOUNT_FOLDER / "namespace").strip() or DEFAULT_NAMESPACE
    except CredentialsError:  # it is not needed to reach the API server
        return DEFAULT_NAMESPACE


def _of_kubeconfigs(paths: list[Path], context: str | None) -> Configuration:
    """Several files are merged as by kubectl: the first that has a name holds; one that does not exist is left out."""
    files = [(path, _parse(path)) for path in paths if len(paths) == 1 or path.exists()]
    if not files:
        raise CredentialsError(f"no kubeconfig at {', '.join(map(str, paths))}")
    where = os.pathsep.join(str(path) for path, _ in files)
    current = context or next((str(c["current-context"]) for _, c in files if c.get("current-context")), "")
    if not current:
        raise CredentialsError(f"{where}: current-context is not set")
    _, chosen = _named(files, "context", current, where)
    cluster_file, cluster = _named(files, "cluster", str(chosen.get("cluster", "")), where)
    user_file, user = _named(files, "user", str(chosen.get("user", "")), where) if chosen.get("user") else (where, {})
    if not isinstance(cluster.get("server"), str):
        raise CredentialsError(f"{cluster_file}: cluster {chosen.get('cluster')}: server is missing")
    for unsupported in ("auth-provider", "username"):
        if unsupported in user:
            raise CredentialsError(
                f"{user_file}: user {chosen['user']}: {unsupported} is not supported (a token, tokenFile, client "
                "certificate or exec plugin is)"
            )
    return Configuration(
        host=cluster["server"].rstrip("/"),
        tokens=_tokens(user, user_file),
        authority=_pem(cluster, "certificate-authority", cluster_file),
        client_certificate=_pem(user, "client-certificate", user_file),
        client_key=_pem(user, "client-key", user_file),
        verify=not cluster.get("insecure-skip-tls-verify", False),
        server_name=cluster.get("tls-server-name"),
        proxy=cluster.get("proxy-url"),
        namespace=str(chosen.get("namespace") or DEFAULT_NAMESPACE),
    )


def _tokens(user: Mapping[str, Any], where: Path | str) -> Tokens:
    if user.get("tokenFile"):  # kubectl prefers it over `token`, too
        return TokenFile(Path(where).parent / str(user["tokenFile"]))
    if user.get("token"):
        return FixedToken(str(user["token"]))
    exec_config = user.get("exec")
    return ExecToken(exec_config, str(where)) if isinstance(exec_config, Mapping) else FixedToken()


def _named(
    files: list[tuple[Path, Mapping[str, Any]]], kind: str, name: str, where: str
) -> tuple[Path | str, Mapping[str, Any]]:
    for path, content in files:
        entries = content.get(f"{kind}s") or ()
        if not isinstance(entries, (list, tuple)):
            raise CredentialsError(f"{path}: {kind}s is {entries!r}, and must be a list")
        for entry in entries:
            if isinstance(entry, Mapping) and entry.get("name") == name and isinstance(entry.get(kind), Mapping):
                return path, entry[kind]
    raise CredentialsError(f"{where}: there is no {kind} {name!r}")


def _parse(path: Path) -> Mapping[str, Any]:
    import yaml  # a pod needs none

    text = _read(path)
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CredentialsError(f"{path}: no YAML: {yaml_problem(error)}") from error
    if not isinstance(content, Mapping):
        raise CredentialsError(f"{path}: no kubeconfig")
    return content


def _pem(entry: Mapping[str, Any], name: str, where: Path | str) -> str | None:
    if entry.get(f"{name}-data"):
        try:
            return base64.b64decode(str(entry[f"{name}-data"]), validate=True).decode()
        except (binascii.Error, ValueError) as error:
            raise CredentialsError(f"{where}: {name}-data is not base64 of PEM") from error
    return _read(Path(where).parent / str(entry[name])) if entry.get(name) else None


def _read_token(path: Path) -> str:
    token = _read(path).strip()
    if not token:
        raise CredentialsError(f"{path}: empty, where a token should be")
    return token


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise CredentialsError(f"{path}: more than {MAX_FILE_BYTES} bytes")
        return content.decode()
    except OSError as error:
        raise CredentialsError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CredentialsError(f"{path}: no text") from error
