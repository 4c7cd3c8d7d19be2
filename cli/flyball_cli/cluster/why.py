"""`flyball why`: reasons in order, each with what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from flyball_api.names import DEFAULT_NAMESPACE

from flyball_cli.cluster.access import (
    Access,
    CommandError,
    Context,
    Kubeconfig,
    Namespace,
    OperatorNamespace,
    TextOutput,
    TextOutputOption,
    listing,
)

if TYPE_CHECKING:
    from flyball_kube.session import ApiSession
    from flyball_views.why.reasons import Explanation


KINDS = {
    "EnergyAwareJob": ("job", "jobs", "eaj", "energyawarejob", "energyawarejobs"),
    "PowerCap": ("cap", "caps", "pcap", "powercap", "powercaps"),
    "GPUNode": ("node", "nodes", "gpun", "gpunode", "gpunodes"),
}


class Target(NamedTuple):
    """What is asked about; `namespace` is what `--namespace` says, or the target itself (None: the context's)."""

    kind: str
    name: str
    namespace: str | None


def kind_of(word: str, wanted: Sequence[str] = tuple(KINDS)) -> str:
    """The kind that a word means, as kubectl takes them: the plural, the singular or the short name.

    Raises BadParameter, which names those of `wanted`, for a word that is none.
    """
    if (kind := _known_kind(word)) is None:
        words = ", ".join(f"{KINDS[each][0]} ({KINDS[each][2]})" for each in wanted)
        raise typer.BadParameter(f"{word!r} is none of {words}")
    return kind


def split_target(first: str, second: str | None, namespace: str | None = None) -> Target:
    """What `job train`, `job/train`, `research/train` (a job, as reports and pages name it) or `train` asks about."""
    if second is not None:
        return Target(kind_of(first), second, namespace)
    prefix, slash, name = first.partition("/")
    if (kind := _known_kind(prefix)) and not name:
        of_that_name = "" if slash else f"; of a job that is called so: why job/{first}"
        raise typer.BadParameter(f"{first!r} is a kind, and its name is missing: say why {prefix} NAME{of_that_name}")
    if not slash:
        return Target("EnergyAwareJob", first, namespace)
    if kind:
        return Target(kind, name, namespace)
    if namespace not in (None, prefix):
        raise typer.BadParameter(f"{first!r} is a job of the namespace {prefix!r}, and --namespace says {namespace!r}")
    return Target("EnergyAwareJob", name, prefix)


def _known_kind(word: str) -> str | None:
    short = word.lower().partition(".")[0]
    return next((kind for kind, words in KINDS.items() if short in words), None)


def register(app: typer.Typer) -> None:
    """Add `flyball why`."""

    @app.command()
    def why(
        kind: Annotated[
            str,
            typer.Argument(
                metavar="JOB|cap|node", help="A job's name, also as NAMESPACE/NAME; or job, cap or node, and its name."
            ),
        ],
        name: Annotated[str | None, typer.Argument(metavar="NAME", help="The name.")] = None,
        namespace: Namespace = None,
        output: TextOutputOption = TextOutput.TEXT,
        operator_namespace: OperatorNamespace = DEFAULT_NAMESPACE,
        kubeconfig: Kubeconfig = None,
        context: Context = None,
    ) -> None:
        """Why a job, a cap or a node stands as it does: reasons in order, each with what would change it.

        \b
          flyball why train                  a job of this namespace
          flyball why research/train         of another, as reports name it
          flyball why cap row-a              (or: pcap/row-a)
          flyball why node gpu-07

        x marks what stops it, ! what holds it back, - what is good to know.
        """
        from flyball_cli.cluster.access import on_cluster
        from flyball_cli.terminal.endings import invocation
        from flyball_cli.terminal.printing import explanation_text, terminal_width

        target = split_target(kind, name, namespace)
        found = on_cluster(
            Access(kubeconfig, context, target.namespace),
            lambda session, of: _explained(session, target, of, operator_namespace),
        )
        if output is TextOutput.JSON:
            import msgspec

            typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
            return
        typer.echo(explanation_text(found, invocation(), terminal_width()))


async def _explained(session: ApiSession, target: Target, namespace: str, operator_namespace: str) -> Explanation:
    """As `explain`; raises CommandError, with what lists those that there are, where there is no such object."""
    from flyball_views.why.reasons import NoSuchObject

    try:
        return await explain(session, target.kind, target.name, namespace, operator_namespace)
    except NoSuchObject as error:
        raise CommandError(f"{error} ({listing(target.kind)})") from error


async def explain(session: ApiSession, kind: str, name: str, namespace: str, operator_namespace: str) -> Explanation:
    """The explanation of one object as it is now; raises NoSuchObject, ApiError and ApiUnreachable."""
    from flyball_views.why.cap import why_cap
    from flyball_views.why.job import why_job
    from flyball_views.why.node import why_node

    from flyball_cli.cluster.reading import events_about, look

    overview = await look(session, namespace if kind == "EnergyAwareJob" else None, None, operator_namespace)
    if kind == "EnergyAwareJob":
        return why_job(overview, namespace, name, await events_about(session, kind, name, namespace))
    if kind == "PowerCap":
        return why_cap(overview, name, await events_about(session, kind, name))
    events = [*await events_about(session, "Node", name), *await events_about(session, kind, name)]
    return why_node(overview, name, events)
