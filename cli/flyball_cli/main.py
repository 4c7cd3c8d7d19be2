"""The `flyball` command: one small module a sub-command, each importing what it drives only when it runs.

So `flyball --help` answers at once, and a machine that has only one component installed can use that component's
commands.
"""

from __future__ import annotations

import importlib
import sys

import typer

from flyball_cli.cluster_access import invocation

COMMAND_MODULES: tuple[str, ...] = (
    "agent",
    "calibrate",
    "demo",
    "devcluster",
    "emergency",
    "frontier",
    "operator",
    "page",
    "schedule_plot",
    "simulate",
    "support_bundle",
    "compare",
    "zeus",
    "kareus",
    "top",
    "why",
    "report",
    "release",
    "logs",
    "doctor",
    "whatif",
)

DISTRIBUTION = "flyball"
EXTRAS = {
    "matplotlib": "studies",
    "xgboost": "kareus",
    "highspy": "frontiers",
    "numpy": "planner",
    "scipy": "planner",
    "kopf": "operator",
    "fastapi": "page",
    "uvicorn": "page",
    "grpc": "agent",
    "trustme": "testbed",
    "textual": "view",
    "aiohttp": "cli",
    # The container images leave these out.
    "flyball_frontiers": "frontiers",
    "flyball_page": "page",
    "flyball_simulator": "simulator",
    "flyball_studies": "studies",
    "flyball_testbed": "testbed",
}  # what brings a library that is optional


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"{DISTRIBUTION} {version(DISTRIBUTION)}")
        raise typer.Exit


def build_app() -> typer.Typer:
    """The whole command tree; each module of `COMMAND_MODULES` adds its commands by `register(app)`."""
    app = typer.Typer(
        name="flyball",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="Flyball holds a GPU cluster's power to its cap and spends the joules where they buy the most training.",
    )

    @app.callback()
    def root(
        version: bool = typer.Option(
            False, "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ) -> None: ...

    for name in COMMAND_MODULES:
        importlib.import_module(f"flyball_cli.{name}").register(app)
    return app


def main() -> None:
    """Entry point; Ctrl-C ends any command with status 130, a missing optional library with 2, both without a traceback."""
    try:
        build_app()(prog_name=invocation())
    except ModuleNotFoundError as error:
        module = (error.name or "").split(".")[0]
        extra = EXTRAS.get(module)
        if extra is None:
            raise
        print(f"this needs {error.name}: install {DISTRIBUTION}[{extra}]", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
