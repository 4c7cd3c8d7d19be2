"""`flyball operator`: the process that plans the cluster and holds its caps."""

from __future__ import annotations

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The operator: plans the whole cluster and holds its power caps.")
    app.add_typer(group, name="operator")

    @group.command()
    def run(
        kubeconfig: Path | None = typer.Option(
            None, help="Credentials; by default the pod's service account, else $KUBECONFIG."
        ),
        namespace: str = typer.Option("flyball-system", help="Where the leader lease lives."),
        policy: str = typer.Option(
            "powerflow-strict", help="How GPUs and watts are shared out; every name of docs/operator.md."
        ),
        gpu_model: list[Path] = typer.Option(
            [],
            envvar="FLYBALL_GPU_MODELS",
            help="A GPU model as `flyball calibrate` writes it, or a folder of such files (a mounted ConfigMap, say), "
            "instead of the catalogue's. May be repeated, the last one of a product counts; the variable takes "
            "PATH:PATH.",
        ),
        metrics_port: int = typer.Option(
            9400, help="Prometheus metrics, on every address; 0: any free port (in the log)."
        ),
        probe_port: int = typer.Option(8080, help="Liveness, at /healthz; 0 for none."),
        grant_lease_seconds: int = typer.Option(
            60, min=5, help="How long node agents hold their grants without a sign of any operator."
        ),
        leader_lease_seconds: int = typer.Option(15, min=3, help="A leader that cannot renew for this long has lost."),
        leader_renew_seconds: float = typer.Option(3.0, min=0.2, help="How often the leader renews."),
        replan_seconds: float = typer.Option(10.0, min=0.5, help="Plan again at least this often."),
        status_interval_seconds: float = typer.Option(
            5.0, min=0.2, help="Figures that move by themselves are written to statuses at most this often."
        ),
        acknowledge_timeout_seconds: float = typer.Option(
            10.0, min=1.0, help="A node that owes an acknowledgement for this long is planned around."
        ),
        restart_seconds: float = typer.Option(30.0, min=0.0, help="What a resize or a migration costs a job."),
        empty_node_hold_seconds: float = typer.Option(
            0.0,
            min=0.0,
            help="For how long a node that jobs leave stays off, where something powers it off; 0: nobody moves.",
        ),
        empty_node_watts: float = typer.Option(0.0, min=0.0, help="What such a node draws beside its GPUs."),
        training_socket_dir: str = typer.Option(
            "",
            help="The agents' --socket-dir: pods then get FLYBALL_SOCKET, by a hostPath volume. Default: no socket.",
        ),
        log_format: str = typer.Option("json", help="json, or text for a terminal."),
        log_level: str = typer.Option("INFO", help="DEBUG, INFO, WARNING or ERROR."),
    ) -> None:
        """Run the operator until SIGTERM or Ctrl-C.

        Any number may run at once: one leads, by a Lease, and the others stand by. Stopping it raises no limit; node
        agents hold what they were granted until their lease on it ends, and then step down.
        """
        from flyball_kube.logs import configure_logging
        from flyball_operator.main import run as run_operator
        from flyball_operator.settings import Settings

        configure_logging(log_format, log_level)
        try:
            settings = Settings(
                namespace=namespace,
                kubeconfig=kubeconfig,
                policy=policy,
                gpu_model_files=tuple(gpu_model),
                metrics_port=metrics_port,
                probe_port=probe_port,
                grant_lease_seconds=grant_lease_seconds,
                leader_lease_seconds=leader_lease_seconds,
                leader_renew_seconds=leader_renew_seconds,
                replan_seconds=replan_seconds,
                status_interval_seconds=status_interval_seconds,
                acknowledge_timeout_seconds=acknowledge_timeout_seconds,
                restart_seconds=restart_seconds,
                training_socket_directory=training_socket_dir,
                empty_node_hold_seconds=empty_node_hold_seconds,
                empty_node_watts=empty_node_watts,
            )
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        run_operator(settings)
