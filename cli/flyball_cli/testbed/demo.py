"""`flyball demo`: see it work, on this machine, in a few minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flyball_cli.terminal.endings import fail, refuse

HELP = """Hold a cluster of simulated GPUs to a cap that falls and rises, on a real control plane. Four minutes.

Operator, node agents and the jobs' sizes and lengths (an hour of a real trace) are real, machines and training simulated.

The cap starts at 70 % of what the GPUs could draw, falls to 33 % and rises to 60 %. A referee that shares no code with
them reads the hardware 20 times a second. The exit status is 1 if a cap that was reported as enforced was exceeded, or
if a job was lost. Results: power.png, report.json, referee.csv and logs in the output directory.
"""


def register(app: typer.Typer) -> None:
    @app.command(help=HELP)
    def demo(
        nodes: Annotated[int, typer.Option(min=1, max=200, help="Simulated GPU nodes.")] = 16,
        gpus_per_node: Annotated[int, typer.Option(min=1, max=16, help="GPUs of each node (A100).")] = 8,
        jobs: Annotated[int | None, typer.Option(min=1, help="Only the first so many jobs of the trace.")] = None,
        trace: Annotated[
            Path | None,
            typer.Option(
                help="A CSV with job_id,submission_time,duration,num_gpu instead of the hour that comes with it."
            ),
        ] = None,
        compression: Annotated[
            float, typer.Option(min=1.0, help="How many seconds of the trace pass in one real second.")
        ] = 120.0,
        seed: Annotated[int, typer.Option(help="Another seed gives the jobs other models and sizes.")] = 0,
        output: Annotated[Path, typer.Option(help="Where the results go.")] = Path("out/demo"),
        headless: Annotated[bool, typer.Option("--headless", help="Lines of progress instead of a screen.")] = False,
        keep: Annotated[
            bool, typer.Option("--keep", help="Leave the cluster up at the end, until Ctrl-C, to look around.")
        ] = False,
    ) -> None:
        from flyball_kube.errors import ApiError, ApiUnreachable
        from flyball_testbed.controlplane.control_plane import ComponentError
        from flyball_testbed.controlplane.install import REPOSITORY
        from flyball_testbed.controlplane.programs.binaries import BinariesUnavailableError
        from flyball_testbed.demo.command import DemoOptions, run_demo
        from flyball_testbed.demo.scenario import ScenarioError
        from flyball_testbed.site import PartError

        options = DemoOptions(
            trace=trace if trace is not None else REPOSITORY / "examples/traces/itp-hour.csv",
            output=output,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            jobs=jobs,
            compression=compression,
            seed=seed,
            headless=headless,
            keep=keep,
        )
        try:
            status = run_demo(options)
        except ValueError as error:  # a trace that cannot be run, or numbers that make no sense
            refuse(error, error)
        except (
            ScenarioError,
            PartError,
            ComponentError,
            BinariesUnavailableError,
            ApiError,
            ApiUnreachable,
            OSError,
        ) as error:
            fail(error)
        raise typer.Exit(status)
