"""What every command that asks a cluster shares: kubectl's own options, a session, and errors of one line."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from flyball_cli.terminal.endings import fail

if TYPE_CHECKING:
    from flyball_kube.errors import ApiError
    from flyball_kube.session import ApiSession

T = TypeVar("T")

# What `view` leaves out, because it belongs to nobody's namespace.
CLUSTER_RESOURCES = frozenset({"nodes", "customresourcedefinitions", "validatingadmissionpolicybindings"})
# kubectl hands its own options to no plugin: each has to take them by itself.
Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", help="The kubeconfig file; by default the one that kubectl uses."),
]
Context = Annotated[str | None, typer.Option("--context", help="The context of the kubeconfig.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="The namespace; the context's where this is not given.")
]
OneNamespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Only this namespace; without it the whole cluster.")
]
OperatorNamespace = Annotated[
    str,
    typer.Option("--operator-namespace", envvar="FLYBALL_OPERATOR_NAMESPACE", help="Where the operator is installed."),
]

_FORBIDDEN = re.compile(
    r'cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"(?P<where>.*)'
)


class TextOutput(StrEnum):
    """How an answer is printed."""

    TEXT = "text"
    JSON = "json"


TextOutputOption = Annotated[TextOutput, typer.Option("--output", "-o", help="text or json.")]


class CommandError(Exception):
    """A command cannot do what was asked; the message is the one line that is printed."""


@dataclass(frozen=True, slots=True)
class Access:
    """Which cluster, as whom, and the namespace that was asked for (None: the context's)."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None


def on_cluster(access: Access, work: Callable[[ApiSession, str], Awaitable[T]]) -> T:
    """The result of `work(session, namespace)`; what keeps the cluster from answering ends the command with one line."""
    import asyncio

    from flyball_kube.credentials import CredentialsError, load_configuration
    from flyball_kube.emergency import NoSuchEmergency
    from flyball_kube.errors import ApiError, ApiUnreachable
    from flyball_kube.session import ApiSession

    host = ""

    async def run() -> T:
        nonlocal host
        configuration = load_configuration(access.kubeconfig, access.context)
        host = configuration.host
        async with ApiSession(configuration) as session:
            return await work(session, access.namespace or configuration.namespace)

    try:
        return asyncio.run(run())
    except ApiError as error:
        fail(refusal(error))
    except ApiUnreachable as error:
        fail(
            f"no answer from {host or 'the API server'}: {error}; see that it runs and that the address is right "
            "(kubectl cluster-info)",
        )
    except CredentialsError as error:
        fail(str(error) if access.kubeconfig else f"{error}; --kubeconfig FILE or $KUBECONFIG names another")
    except (NoSuchEmergency, CommandError, ValueError) as error:
        fail(error)


def listing(kind: str) -> str:
    """The command that lists what there is of a kind."""
    return f"kubectl get {kind.lower()}s{' --all-namespaces' if kind == 'EnergyAwareJob' else ''}"


def refusal(error: ApiError) -> str:
    """What the API server's refusal means, and what would be right."""
    if error.status == 401:
        return "the API server does not know who you are (kubectl auth whoami): renew your credentials"
    if error.status == 403:
        return missing_right(error.message)
    if error.not_found and "could not find the requested resource" in error.message:
        return "Flyball is not installed in this cluster: its API has no flyball.dev/v1alpha1 (docs/install.md)"
    return str(error)


def missing_right(message: str) -> str:
    """Which right is missing, and which role has it, from what the API server says of it."""
    found = _FORBIDDEN.search(message)
    if found is None:
        return message
    verb, resource, group = found["verb"], found["resource"], found["group"]
    inside = re.search(r'in the namespace "([^"]+)"', found["where"])
    where = f"in the namespace {inside.group(1)}" if inside else "in the whole cluster"
    name = f"{resource}.{group}" if group else resource
    return f"you have no right to {verb} {name} {where}; {role_for(verb, resource, group)}"


def role_for(verb: str, resource: str, group: str) -> str:
    """Which of the installed roles has a right."""
    if group == "flyball.dev" and verb in ("get", "list", "watch"):
        return "the ClusterRole flyball-viewer has it"
    if group == "flyball.dev" and resource in ("powercaps", "gpunodes", "powerbrakes"):
        return "the ClusterRole flyball-sre has it"
    if group == "flyball.dev":
        return "the ClusterRole edit has it"
    if resource == "leases" and verb in ("get", "list", "watch"):
        return "the ClusterRole flyball-viewer has it for the operator's"
    if resource in CLUSTER_RESOURCES:
        return "no role of Flyball's has it: ask your administrator"
    return "the ClusterRole view has it" if verb in ("get", "list", "watch") else "ask your administrator"
