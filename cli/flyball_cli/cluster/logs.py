"""`flyball logs`: what all ranks of a job say, of this incarnation and of earlier ones as far as their pods are there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball_cli.cluster.access import Access, CommandError, Context, Kubeconfig, Namespace, listing

if TYPE_CHECKING:
    from flyball_kube.session import ApiSession

# More at once would be more streams than an API server gives one user, and more than anybody reads.
MOST_STREAMS = 64


@dataclass(frozen=True, slots=True, order=True)
class RankPod:
    """A rank's pod; incarnation and rank come first, by which pods are sorted."""

    incarnation: int
    rank: int
    name: str
    phase: str
    container: str
    restarts: int

    @property
    def prefix(self) -> str:
        return f"[{self.incarnation}/{self.rank}] "


def register(app: typer.Typer) -> None:
    """Add `flyball logs`."""

    @app.command()
    def logs(
        job: Annotated[str, typer.Argument(help="The EnergyAwareJob.")],
        follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
        tail: Annotated[int, typer.Option(min=-1, help="The last lines of each rank; -1: all.")] = 20,
        rank: Annotated[
            list[int] | None, typer.Option(min=0, metavar="<int>", help="Only this rank; may be repeated.")
        ] = None,
        previous: Annotated[
            bool,
            typer.Option("--previous", "-p", help="Of earlier incarnations and containers, the present one left out."),
        ] = False,
        timestamps: Annotated[bool, typer.Option("--timestamps", help="With the kubelet's time of each line.")] = False,
        namespace: Namespace = None,
        kubeconfig: Kubeconfig = None,
        context: Context = None,
    ) -> None:
        """What the trainers of a job say: all ranks, each line after its incarnation and rank.

        Colours are left out, and what else would drive the terminal is shown, not done.

        A resize or a move ends an incarnation and deletes its pods, and what a kubelet kept of them goes with them: only
        a log collector of the cluster has it longer. Which incarnations are gone is said at the beginning.

        \b
          flyball logs train -f                  go on with what all ranks say
          flyball logs train --rank 0 --tail -1  all that rank 0 has said
          flyball logs train --previous          what is kept of earlier ones
        """
        from flyball_cli.cluster.access import on_cluster

        wanted = Wanted(follow, tail, frozenset(rank or ()), previous, timestamps)
        access = Access(kubeconfig, context, namespace)
        on_cluster(access, lambda session, of: show(session, of, job, wanted, typer.echo, _notice))


def _notice(line: str) -> None:
    typer.echo(line, err=True)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines are wanted; `tail` -1 is all, no `ranks` is all."""

    follow: bool = False
    tail: int = -1
    ranks: frozenset[int] = frozenset()
    previous: bool = False
    timestamps: bool = False


async def show(
    session: ApiSession,
    namespace: str,
    job: str,
    wanted: Wanted,
    say: Callable[[str], None],
    notice: Callable[[str], None],
) -> None:
    """Say the lines that are wanted, and notice what is missing of them; raises CommandError, ApiError, ApiUnreachable.

    Where not one rank's log can be had, that is an error, too: who only looks at the status would take it for silence.
    """
    import asyncio

    from flyball_kube.errors import ApiError

    from flyball_cli.terminal.printing import harmless, in_one_line

    current, pods = await ranks_of(session, namespace, job)
    chosen = choose(pods, current, wanted)
    gone = sorted(set(range(1, current + 1)) - {pod.incarnation for pod in pods})
    if gone and (wanted.previous or current in gone):
        notice(f"# the pods of incarnation {_ranges(gone)} are gone, and their logs with them")
    if not chosen:
        raise CommandError(_nothing(job, namespace, current, pods, wanted))
    if len(chosen) > MOST_STREAMS:
        notice(f"# the first {MOST_STREAMS} of {len(chosen)} ranks; --rank N chooses others")
        chosen = chosen[:MOST_STREAMS]

    async def one(pod: RankPod) -> bool:
        """Whether the rank's log could be read; where not, the reason is noticed and the others go on."""
        try:
            async for line in lines_of(session, namespace, pod, wanted):
                # A progress bar is drawn over itself; over its prefix it would be another rank's.
                for part in line.removesuffix("\r").split("\r"):
                    say(pod.prefix + harmless(part))
        except ApiError as error:
            if error.status == 403:
                raise
            notice(in_one_line(f"# {pod.prefix}{pod.name} ({pod.phase}): {error.message or error.reason}"))
            return False
        return True

    if wanted.follow:
        read = await asyncio.gather(*(one(pod) for pod in chosen))
    else:
        read = [await one(pod) for pod in chosen]  # one after the other: each rank's lines stand together
    if not any(read):
        raise CommandError(f"no rank's log of {job} could be read")


async def ranks_of(session: ApiSession, namespace: str, job: str) -> tuple[int, list[RankPod]]:
    """The job's present incarnation (0: none yet), and the pods of all that are there."""
    from flyball_api.energy_aware_job import read_energy_aware_job
    from flyball_api.names import LABEL_JOB_UID
    from flyball_kube.errors import ApiError
    from flyball_kube.resources import ENERGY_AWARE_JOBS, PODS

    from flyball_cli.cluster.reading import list_all

    try:
        found = read_energy_aware_job(await session.get(ENERGY_AWARE_JOBS.path(namespace, job)))
    except ApiError as error:
        if error.not_found and "could not find the requested resource" not in error.message:
            raise CommandError(
                f"there is no EnergyAwareJob {job} in the namespace {namespace} ({listing('EnergyAwareJob')})"
            ) from error
        raise
    raw = await list_all(session, PODS, namespace, labelSelector=f"{LABEL_JOB_UID}={found.uid}")
    return found.last_incarnation, sorted(_rank_pod(pod) for pod in raw)


def _rank_pod(raw: dict[str, Any]) -> RankPod:
    from flyball_api.workloads import read_pod

    pod = read_pod(raw)
    containers = raw.get("spec", {}).get("containers") or [{}]
    trainer = str(containers[0].get("name") or "")
    statuses = raw.get("status", {}).get("containerStatuses") or ()
    restarts = next((int(item.get("restartCount") or 0) for item in statuses if item.get("name") == trainer), 0)
    return RankPod(pod.incarnation, pod.index, pod.name, pod.phase, trainer, restarts)


def choose(pods: Iterable[RankPod], current: int, wanted: Wanted) -> list[RankPod]:
    """The pods whose logs are wanted: those of the present incarnation, or with `previous` what came before it."""
    chosen = [pod for pod in pods if not wanted.ranks or pod.rank in wanted.ranks]
    if wanted.previous:
        return [pod for pod in chosen if pod.incarnation < current or pod.restarts]
    return [pod for pod in chosen if pod.incarnation == current]


async def lines_of(session: ApiSession, namespace: str, pod: RankPod, wanted: Wanted) -> AsyncIterator[str]:
    """A rank's lines; raises ApiError where it has none to give."""
    from flyball_kube.resources import PODS

    params = {"container": pod.container} if pod.container else {}
    if wanted.follow:
        params["follow"] = "true"
    if wanted.tail >= 0:
        params["tailLines"] = str(wanted.tail)
    if wanted.timestamps:
        params["timestamps"] = "true"
    if wanted.previous and pod.restarts:
        params["previous"] = "true"
    async for line in session.text_lines(PODS.path(namespace, pod.name, "log"), params):
        yield line


def _nothing(job: str, namespace: str, current: int, pods: Sequence[RankPod], wanted: Wanted) -> str:
    if wanted.previous:
        return f"no pod of an earlier incarnation of {job} is there, and none of the present one was started again"
    if not current:
        return f"{job} has not been started yet: flyball why {job} -n {namespace}"
    if wanted.ranks and pods:
        return f"{job} has the ranks {_ranges(sorted({pod.rank for pod in pods if pod.incarnation == current}))}"
    return f"no pods of {job} are there now: flyball why {job} -n {namespace}"


def _ranges(numbers: Sequence[int]) -> str:
    """`1-3, 5`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(str(end) for end in dict.fromkeys(part)) for part in parts)
