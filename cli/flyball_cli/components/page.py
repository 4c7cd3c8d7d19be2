"""`flyball page`: caps, nodes and jobs in a browser."""

from __future__ import annotations

import typer
from flyball_kube.process.log_settings import LogSettings
from flyball_page.options import PageOptions

from flyball_cli.components.options import ENVIRONMENT, takes
from flyball_cli.terminal.endings import fail


def register(app: typer.Typer) -> None:
    """Add `flyball page`."""
    group = typer.Typer(no_args_is_help=True, help="The status page: caps, nodes and jobs in a browser, read only.")
    app.add_typer(group, name="page")

    @group.command(epilog=ENVIRONMENT)
    @takes(PageOptions, LogSettings)
    def run(options: PageOptions, logs: LogSettings) -> None:
        """Serve the status page until SIGTERM or Ctrl-C; then open http://127.0.0.1:8090/.

        It reads the cluster with its own rights (yours, where it runs on your machine) and writes nothing. Where others can
        reach it, --authenticate asks everybody for a token and shows what that account may see.
        """
        from flyball_kube.credentials import CredentialsError, load_configuration
        from flyball_kube.errors import ApiError, ApiUnreachable
        from flyball_kube.process.logs import configure_logging
        from flyball_kube.server_version import ServerTooOld
        from flyball_page.main import run as run_page

        configure_logging(logs)
        try:
            load_configuration(options.kubeconfig)
            run_page(options)
        except (ApiError, ApiUnreachable, CredentialsError, ServerTooOld) as error:
            fail(error)
