"""Kopf's connection to the API server, made from the very configuration that our own sessions use.

Kopf's own login inside a pod goes to the name kubernetes.default.svc, so that a failure of the cluster's DNS would end
the process that holds the caps; ours goes to the address that Kubernetes puts into every pod's environment.
"""

from __future__ import annotations

import itertools
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import kopf
from flyball_kube.credentials import load_configuration, ssl_context

# Pauses between kopf's attempts at a request, in seconds.
FIRST_PAUSES_SECONDS = (1.0, 2.0, 5.0, 10.0)
LAST_PAUSE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Connection(kopf.ConnectionInfo):
    """A connection with a TLS context of our own, so that the same certificates count for kopf as for the sessions."""

    tls: ssl.SSLContext | None = None

    def as_ssl_context(self) -> ssl.SSLContext:
        return super().as_ssl_context() if self.tls is None else self.tls


class EndlessPauses:
    """Kopf ends the process when its attempts are used up; a governor outlasts any outage of the API server."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain(FIRST_PAUSES_SECONDS, itertools.repeat(LAST_PAUSE_SECONDS))


async def connection(kubeconfig: Path | None) -> Connection:
    """Where and as whom to connect, as `load_configuration` finds it; raises what that raises."""
    configuration = load_configuration(kubeconfig)
    tls = ssl_context(configuration)
    token = await configuration.tokens.token()
    return Connection(
        server=configuration.host,
        tls=tls if isinstance(tls, ssl.SSLContext) else None,
        scheme="Bearer" if token else None,
        token=token or None,
    )
