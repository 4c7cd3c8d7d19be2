"""`flyball whatif`: what another cap would do, by the operator's own planner; nothing is written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from flyball_api.values.units import JOULES_PER_KILOJOULE

from flyball_cli.cluster.access import Access, CommandError, Context, Kubeconfig, TextOutput, TextOutputOption, listing

if TYPE_CHECKING:
    from flyball_kube.session import ApiSession
    from flyball_operator.planning.what_if import JobChange, PlanningSettings, WhatIf

# A hundred thousand objects come page by page; a cluster that has not been read by then cannot be.
READ_SECONDS = 60.0


def register(app: typer.Typer) -> None:
    """Add `flyball whatif`."""

    @app.command()
    def whatif(
        kind: Annotated[str, typer.Argument(metavar="pcap", help="pcap (cap): a PowerCap.")],
        name: Annotated[str, typer.Argument(help="Its name.")],
        watts: Annotated[int, typer.Option(min=1, help="What it would allow, static overhead included.")],
        policy: Annotated[str | None, typer.Option(help="The operator's --policy, where it has another.")] = None,
        restart_seconds: Annotated[
            float | None, typer.Option(min=0, help="The operator's --restart-seconds, where it has another.")
        ] = None,
        output: TextOutputOption = TextOutput.TEXT,
        kubeconfig: Kubeconfig = None,
        context: Context = None,
    ) -> None:
        """What a cap at other watts would do: who shrinks, pauses, ends later, and the joules. Nothing is written.

        The operator's planner runs here, twice, on the cluster as it stands: with the caps as they are, and with this one
        changed. It needs the rights to read jobs, pods and nodes in the whole cluster, and Flyball's extra `operator`.

        \b
          flyball whatif pcap hall --watts 28000
        """
        from flyball_cli.cluster.access import on_cluster
        from flyball_cli.cluster.why import kind_of
        from flyball_cli.terminal.endings import fail

        try:
            from flyball_operator.planning.what_if import PlanningSettings
            from flyball_operator.settings import Settings
            from flyball_planner.policies.registry import policy_named
        except ModuleNotFoundError as error:
            fail(f"it plans as the operator does, and needs {error.name}: install flyball[operator]")

        if kind_of(kind) != "PowerCap":
            raise typer.BadParameter("only of a cap (pcap) can this be asked")
        defaults = Settings()
        chosen = policy or defaults.policy
        try:
            policy_named(chosen)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        settings = PlanningSettings(
            chosen,
            defaults.restart_seconds if restart_seconds is None else restart_seconds,
            defaults.guard_fraction,
            tuple(defaults.gpu_resources),
        )
        access = Access(kubeconfig, context)
        found = on_cluster(access, lambda session, _: _ask(session, settings, name, watts))
        typer.echo(printed(found, output))


async def _ask(session: ApiSession, settings: PlanningSettings, cap: str, watts: int) -> WhatIf:
    """Read the cluster once, as an operator does, and plan in a thread."""
    import asyncio

    from flyball_kube.resources import ENERGY_AWARE_JOBS, GPU_NODES, JOBS, NODES, PODS, POWER_BRAKES, POWER_CAPS
    from flyball_operator.cluster.watches import Watches
    from flyball_operator.learning.learner import Learner
    from flyball_operator.planning.what_if import what_if

    for resource in (POWER_CAPS, GPU_NODES, ENERGY_AWARE_JOBS, POWER_BRAKES, NODES, PODS, JOBS):
        await session.get(resource.path(), limit="1")  # what may not be read is said at once, with the right
    watches = Watches(session, lambda: None, settings.gpu_resources)
    tasks = [asyncio.create_task(watch) for watch in watches.runs()]
    try:
        async with asyncio.timeout(READ_SECONDS):
            await watches.wait_synced()
        learner = Learner(session)
        await learner.load()
        cluster = watches.cluster()
    except TimeoutError as error:
        raise CommandError(f"the cluster could not be read within {READ_SECONDS:g} s") from error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if all(known.name != cap for known in cluster.caps):
        raise CommandError(f"there is no PowerCap {cap} ({listing('PowerCap')})")
    return await asyncio.to_thread(what_if, cluster, learner, settings, cap, watts, datetime.now(UTC))


def printed(found: WhatIf, output: TextOutput) -> str:
    """The answer as a table of the jobs that it changes and what it comes to, or as JSON."""
    from flyball_views.texts import counted, energy_text, watts_text

    from flyball_cli.terminal.printing import columns_text, terminal_width

    if output is TextOutput.JSON:
        import msgspec

        changed = [{**msgspec.to_builtins(job), "what": job.what} for job in found.jobs]
        return msgspec.json.format(
            msgspec.json.encode({**msgspec.to_builtins(found), "jobs": changed}), indent=2
        ).decode()
    budget = f"{watts_text(found.watts_before)} for GPUs now, {watts_text(found.watts_after)} then"
    committed = f"{watts_text(found.committed_before)} committed now, {watts_text(found.committed_after)} then"
    parts = [f"PowerCap {found.cap}: {budget}; {committed}"]
    if not found.feasible_after:
        least = watts_text(found.least_watts)
        parts.append(f"IT CANNOT BE HELD: with every job paused its nodes still count with {least}")
    touched = [job for job in found.jobs if job.what not in ("as now", "waits as now")]
    if touched:
        rows = [["WHAT", "JOB", "GPUS", "CLOCK", "WATTS", "ENDS IN", "WHY THEN"]]
        rows += [_row(job) for job in sorted(touched, key=lambda job: (job.what, job.name))]
        parts += ["", columns_text(rows, [False, False, True, True, True, True, False], terminal_width()), ""]
    kept = len(found.jobs) - len(touched)
    if kept:
        parts.append(f"{counted(kept, 'job')} as now" if touched else f"nothing changes for {counted(kept, 'job')}")
    elif not touched:
        parts.append("there are no jobs under it")
    if touched and found.joules_saved is not None:
        saved = found.joules_saved / JOULES_PER_KILOJOULE
        words = f"{energy_text(abs(saved))} {'less' if saved >= 0 else 'more'}"
        parts.append(f"to the ends of the jobs that run either way: {words} by the GPUs")
    return "\n".join(parts)


def _row(job: JobChange) -> list[str]:
    from flyball_views.texts import duration_text, watts_text

    def both(before: Any, after: Any) -> str:
        return f"{before}" if before == after else f"{before} > {after}"

    before, after = job.before, job.after
    return [
        job.what,
        job.name,
        both(before.gpus, after.gpus),
        both(before.clock_megahertz or "-", after.clock_megahertz or "-"),
        both(watts_text(before.watts), watts_text(after.watts)),
        both(duration_text(before.seconds), duration_text(after.seconds)),
        job.why,
    ]
