"""The `flyball` command: a module a sub-command, in rooms by what they work on, each importing what it drives when it runs.

So `flyball --help` answers at once, and a machine that has only one component installed can use that component's
commands.
"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer
from typer.models import CommandInfo, TyperInfo

from flyball_cli.terminal.command_group import GroupUnderHeadings
from flyball_cli.terminal.endings import invocation

# The headings of `flyball --help`, and the modules whose commands stand under each.
COMMAND_MODULES: dict[str, tuple[str, ...]] = {
    "Look at a cluster": (
        "cluster.top", "cluster.why", "cluster.logs", "cluster.report", "cluster.whatif", "components.page",
    ),
    "Operate a cluster": ("cluster.emergency", "cluster.release", "cluster.doctor", "cluster.support_bundle"),
    "Try it here": ("testbed.demo", "testbed.devcluster"),
    "Run on a cluster": ("components.operator", "components.agent", "research.calibrate"),
    "Research": (
        "research.simulate", "research.compare", "research.frontier", "research.frontier_groups", "components.planner",
        "research.schedule_plot", "research.zeus", "research.kareus",
    ),
}  # fmt: skip

HELP = """Flyball holds a GPU cluster's power to its cap and spends the joules where they buy the most training.

\b
  flyball devcluster up --nodes 4    a throwaway cluster with Flyball, here
  flyball top                        who draws the watts, on kubectl's cluster
  flyball why JOB                    why a job has what it has

`kubectl flyball` is the same program. Each command's --help says more.
"""
DISTRIBUTION = "flyball"
EXTRAS = {
    "matplotlib": "studies",
    "xgboost": "kareus",
    "highspy": "frontiers",
    "pylmcf": "frontiers",
    "numpy": "planner",
    "scipy": "planner",
    "kopf": "operator",
    "fastapi": "page",
    "uvicorn": "page",
    "grpc": "agent",
    "trustme": "testbed",
    "urllib3": "testbed",
    "textual": "view",
    "aiohttp": "cli",
    # The container images leave these out.
    "flyball_frontiers": "frontiers",
    "flyball_page": "page",
    "flyball_planner_service": "service",
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
        rich_markup_mode=None,
        cls=GroupUnderHeadings,
        help=HELP,
    )

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None: ...

    for heading, modules in COMMAND_MODULES.items():
        for name in modules:
            importlib.import_module(f"flyball_cli.{name}").register(app)
        added: list[CommandInfo | TyperInfo] = [*app.registered_commands, *app.registered_groups]
        for one in added:
            if isinstance(one, TyperInfo):
                one.cls = GroupUnderHeadings
            if not isinstance(one.rich_help_panel, str):
                one.rich_help_panel = heading
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
        print(f"{invocation()}: this needs {error.name}: install {DISTRIBUTION}[{extra}]", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
