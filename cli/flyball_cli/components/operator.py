"""`flyball operator`: the process that plans the cluster and holds its caps."""

from __future__ import annotations

import typer
from flyball_kube.process.log_settings import LogSettings
from flyball_operator.settings import Settings

from flyball_cli.components.options import ENVIRONMENT, takes
from flyball_cli.terminal.endings import fail


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The operator: plans the whole cluster and holds its power caps.")
    app.add_typer(group, name="operator")

    @group.command(epilog=ENVIRONMENT)
    @takes(Settings, LogSettings)
    def run(settings: Settings, logs: LogSettings) -> None:
        """Run the operator until SIGTERM or Ctrl-C.

        Any number may run at once: one leads, by a Lease, and the others stand by. Stopping it raises no limit; node
        agents hold what they were granted until their lease on it ends, and then step down.
        """
        from flyball_kube.credentials import CredentialsError, load_configuration
        from flyball_kube.process.logs import configure_logging
        from flyball_operator.main import run as run_operator

        configure_logging(logs)
        try:
            load_configuration(settings.kubeconfig)
        except CredentialsError as error:
            fail(error)
        run_operator(settings)
