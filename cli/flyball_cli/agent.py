"""`flyball agent`: the node agent as a process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `flyball agent ...`."""
    agent = typer.Typer(no_args_is_help=True, help="The node agent: holds a node's GPUs to what the operator grants.")
    app.add_typer(agent, name="agent")

    @agent.callback()
    def group() -> None: ...

    @agent.command()
    def run(
        node_name: Annotated[str, typer.Option(envvar="NODE_NAME", help="The Kubernetes node that this is.")],
        driver: Annotated[str, typer.Option(help="nvml, or simulated.")] = "nvml",
        journal_dir: Annotated[
            Path, typer.Option(help="Where the journal lies; it must outlive the process and the pod.")
        ] = Path("/var/lib/flyball"),
        socket_dir: Annotated[
            Path | None,
            typer.Option(help="Where training processes find their sockets, a folder a pod. Default: none."),
        ] = None,
        hardware_dir: Annotated[
            Path | None, typer.Option(help="Simulated hardware: <node>.gpus and <node>.pods.json.")
        ] = None,
        nvml_library: Annotated[
            Path | None, typer.Option(help="libnvidia-ml.so.1; default: where the dynamic loader finds it.")
        ] = None,
        pods: Annotated[
            str, typer.Option(help="Who holds which GPU: kubelet, file, or auto (by the driver).")
        ] = "auto",
        kubelet_socket: Annotated[Path, typer.Option(help="The kubelet's PodResources socket.")] = Path(
            "/var/lib/kubelet/pod-resources/kubelet.sock"
        ),
        kubeconfig: Annotated[
            Path | None, typer.Option(help="Default: the pod's service account, else $KUBECONFIG.")
        ] = None,
        kubernetes: Annotated[bool, typer.Option(help="Follow the GPUNode; without, the agent only watches.")] = True,
        metrics_host: Annotated[str, typer.Option(help="The address that /metrics is served on.")] = "0.0.0.0",  # noqa: S104
        metrics_port: Annotated[int, typer.Option(help="0: any free one; -1: no metrics.")] = 9101,
        tick_seconds: Annotated[float, typer.Option(min=0.05, help="The longest time between two rounds.")] = 1.0,
        status_interval_seconds: Annotated[
            float, typer.Option(min=0.1, help="The longest time between two writes of measurements.")
        ] = 30.0,
        log_format: Annotated[str, typer.Option(help="json, or text.")] = "json",
        log_level: Annotated[str, typer.Option(help="debug, info, warning, error.")] = "info",
    ) -> None:
        """Run the agent of one node until it is told to stop (SIGTERM). Power limits stay as they are then."""
        import asyncio

        from flyball_agent.gpu import GpuError
        from flyball_agent.journal import JournalHeld
        from flyball_agent.main import AgentFailed, AgentOptions, OptionError, run_agent
        from flyball_kube.logs import configure_logging

        try:
            configure_logging(log_format, log_level)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        options = AgentOptions(
            node_name=node_name,
            driver=driver,
            journal_dir=journal_dir,
            socket_dir=socket_dir,
            hardware_dir=hardware_dir,
            nvml_library=nvml_library,
            pods=pods,
            kubelet_socket=kubelet_socket,
            kubeconfig=kubeconfig,
            kubernetes=kubernetes,
            metrics_host=metrics_host,
            metrics_port=None if metrics_port < 0 else metrics_port,
            tick_seconds=tick_seconds,
            status_interval_seconds=status_interval_seconds,
        )
        try:
            asyncio.run(run_agent(options))
        except (AgentFailed, GpuError, JournalHeld, OptionError, OSError) as error:
            typer.echo(f"flyball agent: {error}", err=True)
            raise typer.Exit(1) from error
