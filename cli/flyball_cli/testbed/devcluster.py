"""`flyball devcluster`: a throwaway cluster on this machine, from any shell."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from flyball_cli.terminal.endings import fail
from flyball_cli.testbed import devcluster_access
from flyball_cli.testbed.devcluster_access import NAME, attached, say

if TYPE_CHECKING:
    from flyball_testbed.controlplane.cluster import DevCluster
    from flyball_testbed.realnode.node import RealNode

HELP = """A throwaway Kubernetes cluster on this machine, with simulated GPU nodes and Flyball on it.

The real API server, etcd, controller manager and scheduler run as plain processes; on them Flyball's operator, an agent for
each node, training in the pods of each EnergyAwareJob, and the status page. No root, no containers, loopback only;
several can run at once.

With --real the nodes are real, too: kubelet, containerd and a device plugin for simulated GPUs, each node in namespaces
of its own. Pods run. That needs root, Linux, and a few of Debian's packages (it says which).

The first start fetches or builds the programs (minutes, once); after that a start takes seconds.

\b
  flyball devcluster up --nodes 4           start one, in the background
  flyball devcluster up --real --nodes 2    ... with nodes whose pods run
  flyball devcluster kubectl -- get nodes   talk to it
  eval $(flyball devcluster env)            ... with your own tools, here
  flyball devcluster down                   stop it and remove what it left
"""

FOREGROUND_POLL_SECONDS = 0.5

group = typer.Typer(name="devcluster", help=HELP, no_args_is_help=True)


def register(app: typer.Typer) -> None:
    devcluster_access.register(group)
    app.add_typer(group)


def _seen_at(addresses: Mapping[str, str]) -> list[str]:
    """A line for each address that a browser can be pointed at."""
    from flyball_testbed.controlplane.programs.integrations import VICTORIA_METRICS
    from flyball_testbed.controlplane.programs.monitoring_tools import PROMETHEUS
    from flyball_testbed.parts import PAGE

    what = {PAGE: "the status page", PROMETHEUS: "Prometheus: its alerts", VICTORIA_METRICS: "the dashboards"}
    return [f"{address}  {what[name]}" for name, address in addresses.items()]


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    """A request to end becomes an exception, so that what was started is stopped on the way out."""
    raise SystemExit(128 + number)


@group.command()
def up(
    name: NAME = "default",
    nodes: Annotated[
        int | None, typer.Option(min=0, help="How many GPU nodes. By default 16, of real ones 1.", show_default=False)
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(min=1, max=64, help="GPUs of each node.")] = 8,
    product: Annotated[
        str, typer.Option(help="The GPUs' product, as in the node label nvidia.com/gpu.product.")
    ] = "NVIDIA-A100-SXM4-40GB",
    pod_start_delay: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="From a simulated pod's binding to its being ready.")
    ] = 0.5,
    real: Annotated[
        bool,
        typer.Option("--real", help="Real nodes, whose pods run: kubelet and containerd in namespaces. Needs root."),
    ] = False,
    images: Annotated[
        list[Path] | None,
        typer.Option(
            "--image",
            metavar="<path>",
            exists=True,
            dir_okay=False,
            help="An image's tar (OCI or Docker) for the real nodes; repeatable.",
        ),
    ] = None,
    bare: Annotated[bool, typer.Option("--bare", help="Kubernetes alone: nothing of Flyball's.")] = False,
    api_only: Annotated[
        bool,
        typer.Option(
            "--api-only",
            help="Flyball's kinds, accounts and policies (and the pods of simulated agents), but nothing that runs: for an"
            " operator of your own.",
        ),
    ] = False,
    install: Annotated[
        bool,
        typer.Option(
            "--install",
            help="With --real: build the images of this checkout and install them by the chart (minutes, once).",
        ),
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, and take the cluster down on Ctrl-C (or if this shell dies).")
    ] = False,
) -> None:
    """Start a cluster and wait until it can be used. It runs on in the background until `down`.

    On it are Flyball's operator, an agent for each node, training in the pods of each EnergyAwareJob, the status page, and,
    where its program is there (`flyball devcluster binaries --monitoring`), a Prometheus with the chart's alerts.

    \b
      flyball devcluster up --nodes 4
      flyball devcluster kubectl -- apply -f examples/manifests/power-cap.yaml \\
        -f examples/manifests/first-job.yaml
      flyball devcluster kubectl -- get powercaps,energyawarejobs
      flyball top --kubeconfig "$(flyball devcluster kubeconfig)"
    """
    from flyball_kube.errors import ApiError, ApiUnreachable
    from flyball_simulated_gpu.catalogue import CATALOGUE
    from flyball_testbed.controlplane.cluster import DevCluster, start_named
    from flyball_testbed.controlplane.control_plane import ComponentError, Options
    from flyball_testbed.controlplane.network import NetworkError
    from flyball_testbed.controlplane.programs.binaries import BinariesUnavailableError
    from flyball_testbed.images.build import ImageBuildError, ImagesUnavailableError
    from flyball_testbed.packaged import ChartError, install_packaged
    from flyball_testbed.realnode.cluster import RealCluster, UnfitMachineError
    from flyball_testbed.realnode.gpus import CompilerError
    from flyball_testbed.realnode.node import NodeError
    from flyball_testbed.standing import StandingError, set_up, take_down

    if images and not real:
        fail("--image is for real nodes: simulated ones run nothing (add --real)")
    if install and not real:
        fail(
            "--install is for real nodes, whose pods run (add --real); simulated ones have everything without it",
        )
    if [bare, api_only, install].count(True) > 1:
        fail("--bare, --api-only and --install exclude each other")
    everything = not (real or bare or api_only)
    if everything and product not in CATALOGUE:
        fail(f"--product {product} is none of the GPUs that are simulated: {', '.join(CATALOGUE)}")
    addresses: Mapping[str, str] = {}
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    started = time.monotonic()

    def start(directory: Path) -> DevCluster:
        nonlocal addresses
        if real:
            cluster = RealCluster.start(
                1 if nodes is None else nodes,
                gpus_per_node,
                product=product,
                directory=directory,
                images=images or [],
                install=not (bare or install),
                die_with_parent=foreground,
                report=say,
            )
            if install:
                install_packaged(cluster, say)
            return cluster.devcluster
        simulated = DevCluster.start(
            16 if nodes is None else nodes,
            gpus_per_node,
            product=product,
            directory=directory,
            install=not bare,
            options=Options(pod_start_delay_seconds=pod_start_delay, die_with_parent=foreground),
            report=say,
        )
        if everything:
            addresses = set_up(simulated, gpus_per_node, product, die_with_parent=foreground, report=say)
        return simulated

    try:
        cluster = start_named(name, start, say, take_down)
    except (
        BinariesUnavailableError,
        ChartError,
        CompilerError,
        ComponentError,
        ApiError,
        ApiUnreachable,
        ImageBuildError,
        ImagesUnavailableError,
        NetworkError,
        NodeError,
        StandingError,
        UnfitMachineError,
        OSError,
        LookupError,
        ValueError,
    ) as error:
        fail(error)
    count = len(cluster.node_names())
    kind = f"{'real ' if real else ''}node{'s' if count != 1 else ''}"
    say(
        f"devcluster {name!r} is up in {time.monotonic() - started:.1f} s: {count} {kind} with {gpus_per_node} GPUs each,"
        f" {cluster.control_plane.server_url}"
    )
    option = "" if name == "default" else f" --name {name}"
    for line in _commands(option, simulated_all=everything, packaged=install, real_bare=real and bare):
        say(f"  {line}")
    say(f"  export KUBECONFIG={cluster.kubeconfig}")
    for line in _seen_at(addresses):
        say(f"  {line}")
    if not foreground:
        say(f"  flyball devcluster down{option}")
        return
    _stay(name, cluster)


def _commands(option: str, *, simulated_all: bool, packaged: bool, real_bare: bool) -> list[str]:
    """What can be done with a cluster that is up: with simulated nodes and all of Flyball (`simulated_all`), with real ones
    and Flyball by its chart (`packaged`), or with less; `option` names the cluster."""
    from flyball_testbed.packaged import PAGE_PATH

    kubectl = f"flyball devcluster kubectl{option} --"
    if not (simulated_all or packaged):
        chart = ["docs/install.md goes on at The chart, without image.registry"] if real_bare else []
        return [f"{kubectl} get nodes", *chart]
    lines = [f"{kubectl} get gpunodes", f"{kubectl} apply -f examples/manifests/power-cap.yaml"]
    if simulated_all:
        lines.append(f"{kubectl} apply -f examples/manifests/first-job.yaml")
    lines.append(f"{kubectl} get powercaps,energyawarejobs --watch")
    lines.append(f'flyball top --kubeconfig "$(flyball devcluster kubeconfig{option})"')
    if packaged:
        page = "--namespace flyball-system create token flyball-page"
        lines.append(f"{kubectl} {page}     # to see the status page with")
        lines.append(f"{kubectl} proxy     # and then http://localhost:8001{PAGE_PATH}")
    return lines


def _stay(name: str, cluster: DevCluster) -> None:
    """Wait until the cluster is taken down, by another shell or here by Ctrl-C."""
    from flyball_testbed.standing import take_down

    try:
        say("  Ctrl-C takes it down")
        while cluster.control_plane.layout.state.exists():  # until another shell takes it down
            time.sleep(FOREGROUND_POLL_SECONDS)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would leave half of it
        say(f"taking {name!r} down")
        take_down(cluster.directory)


@group.command()
def down(
    name: NAME = "default",
    every: Annotated[bool, typer.Option("--all", help="Take every cluster down.")] = False,
) -> None:
    """Stop a cluster and remove everything it left. One that is not there is no error."""
    from flyball_testbed.controlplane.cluster import cluster_names, named_directory
    from flyball_testbed.standing import take_down

    names = cluster_names() if every else [name]
    for each in names:
        try:
            found = take_down(named_directory(each))
        except ValueError as error:
            fail(error)
        say(f"devcluster {each!r} is down" if found else f"there is no devcluster {each!r}")


@group.command()
def status(name: Annotated[str | None, typer.Option("--name", help="Only this one.")] = None) -> None:
    """Show the clusters of this machine, their components and their memory; fails if one has lost a component."""
    from flyball_testbed.controlplane.cluster import DevCluster, cluster_names, named_directory
    from flyball_testbed.controlplane.processes import resident_bytes
    from flyball_testbed.standing import addresses_of, processes_of

    names = [name] if name is not None else cluster_names()
    if not names:
        typer.echo("no devcluster; start one with: flyball devcluster up")
    broken = False
    for each in names:
        control_plane = attached(each).control_plane
        running = control_plane.running()
        memory = control_plane.resident_bytes()
        typer.echo(f"{each}  {control_plane.server_url}  {named_directory(each)}")
        for component in control_plane.components():
            if component in running:
                typer.echo(f"  {component:<24} pid {running[component]:<8} {memory[component] / 2**20:5.0f} MiB")
            else:
                broken = True
                typer.echo(f"  {component:<24} not running; its log: {control_plane.layout.log(component)}")
        for part in processes_of(named_directory(each)):
            if part.is_running():
                typer.echo(f"  {part.name:<24} pid {part.pid:<8} {resident_bytes(part.pid) / 2**20:5.0f} MiB")
            else:
                broken = True
                typer.echo(f"  {part.name:<24} not running; its log: {part.log_path}")
        for node in _real_nodes(each):
            if node.is_running():
                typer.echo(f"  {node.name:<24} pid {node.pid:<8} {node.resident_bytes() / 2**20:5.0f} MiB")
            else:
                broken = True
                typer.echo(f"  {node.name:<24} not running; its logs: {node.machine.folder / 'logs'}")
        if {"etcd", "kube-apiserver"} <= set(running):
            typer.echo(f"  {len(DevCluster(control_plane).node_names())} nodes")
        for line in _seen_at(addresses_of(named_directory(each))):
            typer.echo(f"  {line}")
    if broken:
        raise typer.Exit(1)


def _real_nodes(name: str) -> list[RealNode]:
    from flyball_testbed.controlplane.cluster import named_directory
    from flyball_testbed.realnode.cluster import RealCluster, is_real

    directory = named_directory(name)
    return list(RealCluster.attach(directory).nodes.values()) if is_real(directory) else []


@group.command()
def binaries(
    real: Annotated[bool, typer.Option("--real", help="Those of real nodes, too.")] = False,
    monitoring: Annotated[bool, typer.Option("--monitoring", help="Prometheus and promtool, too.")] = False,
) -> None:
    """Find the control plane's programs, fetching or building what is missing, and print where they are."""
    from flyball_testbed.controlplane.programs.binaries import (
        NODE_PROGRAMS,
        PROGRAMS,
        BinariesUnavailableError,
        find_binaries,
    )
    from flyball_testbed.controlplane.programs.monitoring_tools import find_monitoring_tools

    try:
        found = dict(find_binaries(say, (*PROGRAMS, *NODE_PROGRAMS) if real else PROGRAMS).paths)
        if monitoring:
            found |= find_monitoring_tools(say).paths
    except BinariesUnavailableError as error:
        fail(error)
    for program, path in found.items():
        typer.echo(f"{program:<24} {path}")
