"""`flyball why`: reasons in order, each with what would change it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from flyball_cli.cluster_access import Access, Context, Kubeconfig, Namespace, OperatorNamespace

if TYPE_CHECKING:
    from flyball_kube.session import ApiSession
    from flyball_views.why.reasons import Explanation


class Output(StrEnum):
    """How the answer is printed."""

    TEXT = "text"
    JSON = "json"


KINDS = {
    "EnergyAwareJob": ("job", "jobs", "eaj", "energyawarejob", "energyawarejobs"),
    "PowerCap": ("cap", "caps", "pcap", "powercap", "powercaps"),
    "GPUNode": ("node", "nodes", "gpun", "gpunode", "gpunodes"),
}


def kind_of(word: str) -> str:
    """The kind that a word means, as kubectl takes them: the plural, the singular or the short name."""
    short = word.lower().partition(".")[0]
    for kind, words in KINDS.items():
        if short in words:
            return kind
    raise typer.BadParameter(f"{word!r} is none of job (eaj), cap (pcap), node (gpun)")


def split_target(first: str, second: str | None) -> tuple[str, str]:
    """Kind and name from `job train`, `job/train`, or `train`, which means a job."""
    if second is not None:
        return kind_of(first), second
    kind, slash, name = first.partition("/")
    return (kind_of(kind), name) if slash else ("EnergyAwareJob", first)


def register(app: typer.Typer) -> None:
    """Add `flyball why`."""

    @app.command()
    def why(
        kind: Annotated[
            str, typer.Argument(metavar="JOB|cap|node", help="A job's name; or job, cap or node, and its name.")
        ],
        name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The name.")] = None,
        namespace: Namespace = None,
        output: Annotated[Output, typer.Option("--output", "-o", help="text or json.")] = Output.TEXT,
        operator_namespace: OperatorNamespace = "flyball-system",
        kubeconfig: Kubeconfig = None,
        context: Context = None,
    ) -> None:
        """Why a job, a cap or a node stands as it does: reasons in order, each with what would change it.

        \b
          flyball why train                  a job of this namespace
          flyball why cap row-a              (or: pcap/row-a)
          flyball why node gpu-07

        x marks what stops it, ! what holds it back, - what is good to know.
        """
        from flyball_cli.cluster_access import invocation, on_cluster
        from flyball_cli.printing import explanation_text, terminal_width

        of_kind, of_name = split_target(kind, name)
        access = Access(kubeconfig, context, namespace)
        found = on_cluster(
            "why", access, lambda session, of: explain(session, of_kind, of_name, of, operator_namespace)
        )
        if output is Output.JSON:
            import msgspec

            typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
            return
        typer.echo(explanation_text(found, invocation(), terminal_width()))


async def explain(session: ApiSession, kind: str, name: str, namespace: str, operator_namespace: str) -> Explanation:
    """The explanation of one object as it is now; raises NoSuchObject, ApiError and ApiUnreachable."""
    from flyball_views.why.cap import why_cap
    from flyball_views.why.job import why_job
    from flyball_views.why.node import why_node

    from flyball_cli.cluster_reading import events_about, look

    overview = await look(session, namespace if kind == "EnergyAwareJob" else None, None, operator_namespace)
    if kind == "EnergyAwareJob":
        return why_job(overview, namespace, name, await events_about(session, kind, name, namespace))
    if kind == "PowerCap":
        return why_cap(overview, name, await events_about(session, kind, name))
    said = [*await events_about(session, "Node", name), *await events_about(session, kind, name)]
    return why_node(overview, name, said)
