"""`python -m flyball_agent.process.start OPTIONS`: a process of an agent, without what has read its command line.

`flyball agent run` and `flyball agent enforcer` become this: the libraries of a command line would be 8 MiB in each of a
node's processes, for as long as they run.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

_ALREADY = sys.modules.get("typing_extensions")
if _ALREADY is None:
    # msgspec loads it wherever it is installed, for versions of Python that need it: half a MiB in each process.
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
import msgspec  # noqa: E402

if _ALREADY is None:
    del sys.modules["typing_extensions"]
from flyball_kube.process.log_settings import LogSettings  # noqa: E402

from flyball_agent.process.options import AgentOptions, EnforcerOptions  # noqa: E402

TLS_RECORD_BYTES = 2**14
# Of a node's training sockets, 128 by the plugin and as many by pods' own folders, each may have eight connections and two
# that listen. Many container runtimes let a process have 1024 files, so that pods could take those of the API server.
OPEN_FILES = 8192


class _Run(msgspec.Struct, frozen=True, tag=True):
    options: AgentOptions
    logs: LogSettings
    version: str  # what looks it up would be a MiB, for as long as the agent runs


class _Enforcer(msgspec.Struct, frozen=True, tag=True):
    options: EnforcerOptions
    logs: LogSettings


def become(options: AgentOptions | EnforcerOptions, logs: LogSettings) -> NoReturn:
    """Go on as the process that these options are for. Raises OSError."""
    os.execv(sys.executable, [sys.executable, "-m", __name__, _described(options, logs)])  # noqa: S606 - no shell


def _described(options: AgentOptions | EnforcerOptions, logs: LogSettings) -> str:
    process: _Run | _Enforcer
    if isinstance(options, AgentOptions):
        from flyball_kube.process.package import package_version

        process = _Run(options, logs, package_version())
    else:
        process = _Enforcer(options, logs)
    return msgspec.json.encode(process, enc_hook=os.fspath).decode()


def _read(described: str) -> _Run | _Enforcer:
    def path(kind: type, value: Any) -> Any:
        return kind(value)

    return msgspec.json.decode(described, type=_Run | _Enforcer, dec_hook=path)


def allow_open_files() -> None:
    """Let this process have `OPEN_FILES`, or as many as it may."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run(options: AgentOptions, logs: LogSettings, version: str) -> str:
    """Run the agent of one node to its end; why it ended, where it should not have."""
    import asyncio
    from asyncio import sslproto

    from flyball_kube.credentials import CredentialsError
    from flyball_kube.process.logs import configure_logging

    from flyball_agent.enforce.journal import JournalHeld, JournalOfAnotherNode
    from flyball_agent.gpu.gpu import GpuError
    from flyball_agent.process.main import AgentFailed, ServerTooOld, run_agent

    expected = (AgentFailed, CredentialsError, GpuError, JournalHeld, JournalOfAnotherNode, OSError, ServerTooOld)
    # Each TLS connection has a buffer of this size, a quarter of a MiB by default, for records of no more than 16 KiB.
    sslproto.SSLProtocol.max_size = TLS_RECORD_BYTES
    allow_open_files()
    configure_logging(logs)
    try:
        asyncio.run(run_agent(options, version))
    except expected as error:
        return f"flyball agent run: {error}"
    return ""


def enforce(options: EnforcerOptions, logs: LogSettings) -> str:
    """Run the enforcer of one node to its end; why it ended, where it should not have.

    It is left without OpenSSL, which asyncio and hashlib load wherever it is: what has the privilege speaks to no network,
    and Python's own SHA-256 gives the digests of grants.
    """
    from importlib.util import find_spec

    own_sha256 = find_spec("_sha2") or find_spec("_sha256")  # by the version of Python; some builds have neither
    sys.modules.update(dict.fromkeys(("ssl", "_hashlib") if own_sha256 else ("ssl",)))  # type: ignore[arg-type]
    import asyncio

    from flyball_kube.process.logs import configure_logging

    from flyball_agent.enforce.journal import JournalHeld, JournalOfAnotherNode
    from flyball_agent.govern.governor import AgentFailed
    from flyball_agent.process.enforcer import run_enforcer

    configure_logging(logs)
    try:
        asyncio.run(run_enforcer(options))
    except (AgentFailed, JournalHeld, JournalOfAnotherNode, OSError) as error:
        return f"flyball agent enforcer: {error}"
    return ""


def main() -> None:
    """Run what the argument describes; what it ended of goes to standard error, with status 1."""
    try:
        match _read(sys.argv[1]):
            case _Run(options, logs, version):
                failure = run(options, logs, version)
            case _Enforcer(options, logs):
                failure = enforce(options, logs)
    except ModuleNotFoundError as error:
        failure = f"this needs {error.name}: install flyball[agent]"
    except KeyboardInterrupt:  # before the process listens for signals itself
        failure = "interrupted"
    if failure:
        sys.exit(failure)


if __name__ == "__main__":
    main()
