"""What a shell does with a throwaway cluster that runs: its kubectl and kubeconfig, and how a node hands out its GPUs."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from flyball_cli.terminal.endings import fail

if TYPE_CHECKING:
    from flyball_testbed.controlplane.cluster import DevCluster

NAME = Annotated[str, typer.Option("--name", metavar="NAME", help="Which cluster; each has a folder of its own.")]


def say(line: str) -> None:
    typer.echo(line, err=True)


def attached(name: str) -> DevCluster:
    from flyball_testbed.controlplane.cluster import DevCluster, cluster_names, named_directory

    try:
        return DevCluster.attach(named_directory(name))
    except FileNotFoundError:
        others = ", ".join(cluster_names()) or "none"
        fail(
            f"no cluster {name!r} (there is: {others}); start one with: flyball devcluster up --name {name}",
        )
    except ValueError as error:
        fail(error)


def register(group: typer.Typer) -> None:
    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True}
    group.command(context_settings=passed_on, options_metavar="[OPTIONS] -- ARGS...")(kubectl)
    group.command()(kubeconfig)
    group.command()(share)
    group.command()(env)


def kubectl(context: typer.Context, name: NAME = "default") -> None:
    """Run the cluster's own kubectl on it, as the administrator: `flyball devcluster kubectl -- get pods -A`."""
    cluster = attached(name)
    program = str(cluster.control_plane.kubectl)
    sys.stdout.flush()
    os.execv(program, [program, f"--kubeconfig={cluster.kubeconfig}", *context.args])  # noqa: S606 - no shell on purpose


def kubeconfig(
    name: NAME = "default",
    service_account: Annotated[
        str | None,
        typer.Option(metavar="NAMESPACE/NAME", help="For this service account (a token of seven days)."),
    ] = None,
    pod: Annotated[str | None, typer.Option(help="Bind the service account's token to this pod.")] = None,
) -> None:
    """Print the path of a kubeconfig: the administrator's, or a service account's."""
    from flyball_kube.errors import ApiError, ApiUnreachable

    cluster = attached(name)
    if service_account is None:
        typer.echo(cluster.kubeconfig)
        return
    namespace, slash, account = service_account.partition("/")
    if not slash or not namespace or not account:
        fail(f"--service-account {service_account!r} is not NAMESPACE/NAME")
    try:
        typer.echo(cluster.control_plane.service_account_kubeconfig(namespace, account, pod=pod))
    except (ApiError, ApiUnreachable) as error:
        fail(error)


class Shared(StrEnum):
    """How a node hands out its GPUs."""

    WHOLE = "whole"
    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MIG = "mig"


def share(
    node: Annotated[str, typer.Argument(help="A simulated node, drained of pods with GPUs.")],
    how: Annotated[Shared, typer.Argument(help="What a unit of its extended resource is.")],
    replicas: Annotated[int, typer.Option(min=2, help="Pods to a GPU, under time-slicing and mps.")] = 4,
    name: NAME = "default",
) -> None:
    """Have a simulated node hand out its GPUs whole, in time slices, by MPS, or as MIG instances (one a board).

    It is as if NVIDIA's device plugin had been configured so: labels, extended resources, and the devices that pods get.

    \b
      flyball devcluster share node-003 time-slicing --replicas 4
      flyball devcluster share node-003 whole
    """
    from flyball_kube.errors import ApiError, ApiUnreachable
    from flyball_testbed.parts import hardware_folder
    from flyball_testbed.workload.sharing import Sharing, share_gpus

    cluster = attached(name)
    try:
        share_gpus(cluster.api, hardware_folder(cluster.directory), node, Sharing(how.value), replicas)
    except FileNotFoundError:
        fail(f"{node} has no simulated GPUs here (there are: {', '.join(cluster.node_names())})")
    except (ApiError, ApiUnreachable, ValueError) as error:
        fail(error)
    say(f"{node} hands out its GPUs: {how.value}")


def env(name: NAME = "default") -> None:
    """Print the export of KUBECONFIG, for `eval`."""
    typer.echo(f"export KUBECONFIG={attached(name).kubeconfig}")
