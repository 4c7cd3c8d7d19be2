"""`flyball top`: caps, nodes and jobs with their watts, live or once."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from flyball_api.names import DEFAULT_NAMESPACE

from flyball_cli.cluster.access import Access, CommandError, Context, Kubeconfig, OneNamespace, OperatorNamespace

if TYPE_CHECKING:
    from flyball_kube.session import ApiSession
    from flyball_views.overview import Overview

DEFAULT_REFRESH_SECONDS = 2.0


class OverviewOutput(StrEnum):
    """How an overview is printed."""

    TABLE = "table"
    JSON = "json"


def register(app: typer.Typer) -> None:
    """Add `flyball top`."""

    @app.command()
    def top(
        namespace: OneNamespace = None,
        all_namespaces: Annotated[
            bool, typer.Option("--all-namespaces", "-A", help="The jobs of all namespaces: the default without -n.")
        ] = False,
        once: Annotated[bool, typer.Option("--once", help="Print plain tables and end.")] = False,
        output: Annotated[
            OverviewOutput | None, typer.Option("--output", "-o", help="table or json, once.", show_default=False)
        ] = None,
        nodes: Annotated[bool, typer.Option("--nodes", help="Begin with the nodes, not the jobs.")] = False,
        refresh_seconds: Annotated[
            float, typer.Option(min=0.5, max=600, help="How often the screen is drawn anew.")
        ] = DEFAULT_REFRESH_SECONDS,
        operator_namespace: OperatorNamespace = DEFAULT_NAMESPACE,
        kubeconfig: Kubeconfig = None,
        context: Context = None,
    ) -> None:
        """Caps, nodes and jobs with their watts, clocks and progress, and why: live in the terminal.

        Keys: s sorts, / filters, enter says why, j and n choose jobs or nodes, ? helps, q quits. NO_COLOR is heeded. Where
        the output is no terminal, or with --once or -o, plain tables are printed.

        \b
          flyball top                  all namespaces
          flyball top -n research      the jobs of one
          flyball top --once -o json   everything that the tables are made of
        """
        from flyball_cli.cluster.access import on_cluster

        access = Access(kubeconfig, context, None if all_namespaces else namespace)
        of_all = access.namespace is None
        if once or output is not None or not sys.stdout.isatty():
            found = on_cluster(access, lambda session, of: _look(session, None if of_all else of, operator_namespace))
            typer.echo(printed(found, output or OverviewOutput.TABLE))
            return
        first = "nodes" if nodes else "jobs"
        on_cluster(
            access,
            lambda session, of: _view(session, None if of_all else of, operator_namespace, refresh_seconds, first),
        )


async def _look(session: ApiSession, namespace: str | None, operator_namespace: str) -> Overview:
    from flyball_cli.cluster.reading import look

    await _check_namespace(session, namespace)
    return await look(session, namespace, None, operator_namespace)


async def _check_namespace(session: ApiSession, namespace: str | None) -> None:
    """Raise CommandError where there is no such namespace: one without jobs looks the same."""
    from flyball_kube.errors import ApiError
    from flyball_kube.resources import NAMESPACES

    if namespace is None:
        return
    try:
        await session.get(NAMESPACES.path(name=namespace))
    except ApiError as error:
        if error.not_found:
            raise CommandError(f"there is no namespace {namespace} (kubectl get namespaces)") from error
        if error.status != 403:  # who may not look, is shown what he may see
            raise


def printed(overview: Overview, output: OverviewOutput) -> str:
    """An overview as plain tables, or as JSON for programs."""
    from flyball_views.tables import caps_table, jobs_table, nodes_table

    from flyball_cli.terminal.printing import in_one_line, table_text, terminal_width

    if output is OverviewOutput.JSON:
        import msgspec

        return msgspec.json.format(msgspec.json.encode(overview), indent=2).decode()
    parts = [
        table_text(table, width=terminal_width()) if table.lines else f"no {table.name}"
        for table in (caps_table(overview), nodes_table(overview), jobs_table(overview))
    ]
    parts += [in_one_line(f"left out: {problem}") for problem in overview.problems]
    parts += [in_one_line(f"not looked at: {why}") for _, why in sorted(overview.missing.items())]
    return "\n\n".join(parts)


async def _view(
    session: ApiSession, namespace: str | None, operator_namespace: str, refresh_seconds: float, first: str
) -> None:
    import logging

    from flyball_cli.cluster.live_cluster import LiveCluster
    from flyball_cli.cluster.terminal_view.app import FlyballTop

    logging.basicConfig(handlers=[logging.NullHandler()], force=True)  # nothing may write into the picture
    await _check_namespace(session, namespace)
    async with LiveCluster(session, namespace, operator_namespace) as source:
        await FlyballTop(source, refresh_seconds, first=first).run_async()
