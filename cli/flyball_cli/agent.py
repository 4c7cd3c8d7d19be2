"""`flyball agent`: the node agent as a process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from flyball_agent.options import AgentOptions
from flyball_kube.log_settings import LogSettings

from flyball_cli.options import ENVIRONMENT, takes


def register(app: typer.Typer) -> None:
    """Add `flyball agent ...`."""
    agent = typer.Typer(no_args_is_help=True, help="The node agent: holds a node's GPUs to what the operator grants.")
    app.add_typer(agent, name="agent")

    @agent.callback()
    def group() -> None: ...

    @agent.command(epilog=ENVIRONMENT)
    @takes(AgentOptions, LogSettings)
    def run(options: AgentOptions, logs: LogSettings) -> None:
        """Run the agent of one node until SIGTERM or Ctrl-C. Power limits stay as they are then."""
        import asyncio

        from flyball_agent.enforce.journal import JournalHeld, JournalOfAnotherNode
        from flyball_agent.gpu.gpu import GpuError
        from flyball_agent.main import AgentFailed, ServerTooOld, run_agent
        from flyball_kube.credentials import CredentialsError
        from flyball_kube.logs import configure_logging

        configure_logging(logs)
        try:
            asyncio.run(run_agent(options))
        except (
            AgentFailed,
            CredentialsError,
            GpuError,
            JournalHeld,
            JournalOfAnotherNode,
            OSError,
            ServerTooOld,
        ) as error:
            typer.echo(f"flyball agent: {error}", err=True)
            raise typer.Exit(1) from error

    @agent.command(epilog=ENVIRONMENT)
    def forget(
        node_name: Annotated[str, typer.Option(envvar="NODE_NAME", help="The Kubernetes node that this is.")],
        gpu: Annotated[str, typer.Option(help="The UUID of a GPU that was taken out: GPU-...")],
        journal_dir: Annotated[Path, typer.Option(help="Where the node's journal lies.")] = Path("/var/lib/flyball"),
    ) -> None:
        """Let the node's agent count a GPU no more that was taken out; until then it counts at its largest limit."""
        from flyball_agent.enforce.requests import request_forget

        try:
            request_forget(journal_dir, node_name, gpu)
        except (OSError, ValueError) as error:
            typer.echo(f"flyball agent forget: {error}", err=True)
            raise typer.Exit(1) from error
        typer.echo(f"{gpu}: the agent of {node_name} forgets it in its next round, unless the driver shows it")
