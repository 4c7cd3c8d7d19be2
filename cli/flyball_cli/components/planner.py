"""`flyball planner`: frontiers for those who ask over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `flyball planner`."""
    group = typer.Typer(no_args_is_help=True, help="The planner as a service: profiles in, frontiers out.")
    group.callback()(lambda: None)  # so that `serve` stays a word of its own
    group.command("serve")(serve)
    app.add_typer(group, name="planner")


def serve(
    address: Annotated[
        str, typer.Option(help="The address to listen on; another than this machine's own takes --token-file.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any free one.")] = 8095,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="A file whose only line is the bearer token that requests must have. Default: none needs one."
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Frontiers planned at the same time, a process each.")
    ] = 1,
    max_waiting: Annotated[
        int, typer.Option(min=0, max=10_000, help="Frontiers that may wait for a worker; more are answered with 429.")
    ] = 16,
    max_estimated_seconds: Annotated[
        float, typer.Option(min=1.0, help="A pipeline that would take longer to plan is refused.")
    ] = 300.0,
    deadline_seconds: Annotated[float, typer.Option(min=1.0, help="A plan that takes longer is given up.")] = 900.0,
    kept_megabytes: Annotated[
        int, typer.Option(min=1, help="Frontiers are kept up to this, and answered at once when asked for again.")
    ] = 256,
) -> None:
    """Plan pipelines for those who ask at http://127.0.0.1:8095/, until SIGTERM or Ctrl-C.

    POST /v1/frontiers takes a profile and answers with what `flyball frontier --output` writes.

    \b
      curl -s http://127.0.0.1:8095/v1/frontiers \\
        --data '{"profile": "stage,instruction,...", "microbatches": 16}'
    """
    from flyball_kube.process.log_settings import LogSettings
    from flyball_kube.process.logs import configure_logging
    from flyball_planner_service.main import run
    from flyball_planner_service.options import PlannerOptions

    try:
        options = PlannerOptions(
            address,
            port,
            token_file,
            workers,
            max_waiting,
            max_estimated_seconds,
            deadline_seconds,
            kept_megabytes,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    configure_logging(LogSettings())
    run(options)
