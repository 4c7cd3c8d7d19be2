"""`flyball agent`: the node agent as a process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from flyball_agent.process.options import AgentOptions, EnforcerOptions
from flyball_kube.process.log_settings import LogSettings

from flyball_cli.components.options import ENVIRONMENT, takes
from flyball_cli.terminal.endings import fail

NodeName = Annotated[str, typer.Option(envvar="NODE_NAME", help="The Kubernetes node that this is.")]
JournalFolder = Annotated[Path, typer.Option(exists=True, file_okay=False, help="Where the node's journal lies.")]
JOURNAL_FOLDER = Path("/var/lib/flyball")


def register(app: typer.Typer) -> None:
    """Add `flyball agent ...`."""
    agent = typer.Typer(no_args_is_help=True, help="The node agent: holds a node's GPUs to what the operator grants.")
    app.add_typer(agent, name="agent")

    @agent.callback()
    def group() -> None: ...

    @agent.command(epilog=ENVIRONMENT)
    @takes(AgentOptions, LogSettings)
    def run(options: AgentOptions, logs: LogSettings) -> None:
        """Run the agent of one node until SIGTERM or Ctrl-C. Power limits stay as they are then.

        It holds the node's GPUs to the grant in its GPUNode, reports what it reads back and which pod used what energy.
        With --enforcer-socket it does so through `flyball agent enforcer`, and needs no privilege itself.

        \b
          flyball agent run --node-name gpu-07                    govern its GPUs
          flyball agent run --node-name gpu-07 --mode observe     set nothing
          flyball agent run --node-name gpu-07 --no-kubernetes    only measure
        """
        from flyball_agent.process.start import become

        become(options, logs)

    agent.command("check-gpu")(check_gpu)

    @agent.command(epilog=ENVIRONMENT)
    @takes(EnforcerOptions, LogSettings)
    def enforcer(options: EnforcerOptions, logs: LogSettings) -> None:
        """Run the half of a node's agent that has the privilege, until SIGTERM or Ctrl-C: driver, journal, power limits.

        It needs CAP_SYS_ADMIN for the driver, and no network. `flyball agent run --enforcer-socket` is the other half.
        """
        from flyball_agent.process.start import become

        become(options, logs)

    @agent.command(epilog=ENVIRONMENT)
    def forget(
        node_name: NodeName,
        gpu: Annotated[str, typer.Option(help="The UUID of a GPU that was taken out: GPU-...")],
        journal_dir: JournalFolder = JOURNAL_FOLDER,
    ) -> None:
        """Have the node's agent forget a GPU that was taken out; until then it counts at its largest limit.

        Run it where the node's journal lies: on the node, or in the container enforcer of the agent's pod. The running
        agent, or else the next one, takes it in.

        \b
          flyball agent forget --node-name gpu-07 --gpu GPU-5a3c...
        """
        from flyball_agent.enforce.requests import request_forget

        try:
            request_forget(journal_dir, node_name, gpu)
        except (OSError, ValueError) as error:
            fail(error)
        typer.echo(f"{gpu}: the agent of {node_name} forgets it in its next round, unless the driver shows it")

    @agent.command(epilog=ENVIRONMENT)
    def release(
        node_name: NodeName,
        journal_dir: JournalFolder = JOURNAL_FOLDER,
        minutes: Annotated[float, typer.Option(help="The agent takes the GPUs back after so long.", min=0.1)] = 60.0,
        wait_seconds: Annotated[float, typer.Option(help="How long to wait for it.", min=0.0)] = 120.0,
    ) -> None:
        """Have the node's agent let go of the GPUs, for a reset, a MIG change or a new driver.

        Meanwhile nothing is enforced there, and the operator reserves the most that the GPUs may draw. It waits until the
        agent has closed the driver; `flyball agent resume` has it take the GPUs back. Run it where the node's journal lies:

        \b
          flyball agent release --node-name gpu-07
          kubectl exec -n flyball-system POD -c enforcer -- flyball agent release
        """
        import time

        from flyball_agent.enforce.requests import is_released, request_release

        try:
            request_release(journal_dir, node_name, 60 * minutes)
        except OSError as error:
            fail(error)
        end = time.monotonic() + wait_seconds
        while not is_released(journal_dir, node_name):
            if time.monotonic() >= end:
                fail(f"{node_name}: the GPUs are not let go of yet; they will be")
            time.sleep(0.1)
        typer.echo(f"the agent of {node_name} has let go of the GPUs, for {minutes:g} minutes at most")

    @agent.command(epilog=ENVIRONMENT)
    def resume(node_name: NodeName, journal_dir: JournalFolder = JOURNAL_FOLDER) -> None:
        """Have the node's agent take back the GPUs that it was asked to let go of. Run it where `release` was run."""
        from flyball_agent.enforce.requests import end_release

        try:
            asked = end_release(journal_dir, node_name)
        except OSError as error:
            fail(error)
        typer.echo(f"the agent of {node_name} takes the GPUs back" if asked else "it was not asked to let go of them")


def check_gpu(
    change: Annotated[
        bool, typer.Option("--change", help="Also set power limits of one GPU (CAP_SYS_ADMIN), and put them back.")
    ] = False,
    index: Annotated[int, typer.Option(min=0, help="The GPU whose limits are set.")] = 0,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each GPU's energy is watched.")] = 5.0,
    kept: Annotated[Path, typer.Option(help="Takes what was found, until it is put back.")] = Path("gpu-check.json"),
    restore: Annotated[
        bool, typer.Option("--restore", help="Only put back what a check that was killed left.")
    ] = False,
    nvml_library: Annotated[
        Path | None, typer.Option(help="libnvidia-ml.so.1; default: where the dynamic loader finds it.")
    ] = None,
) -> None:
    """Check on this machine's GPUs what the agent takes for granted of them: one JSON line a finding.

    Reads only, unless told to --change; stop the node's agent before that. Status 1: something does not hold, or could not
    be put back (then --restore).
    """
    import contextlib
    import signal

    from flyball_agent.gpu import check
    from flyball_agent.gpu.gpu import GpuError
    from flyball_agent.gpu.nvml import NvmlDriver

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)  # what was found is put back on the way out

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)

    failed = 0

    def print_findings(findings: Iterable[check.Finding]) -> None:
        nonlocal failed
        for finding in findings:
            failed += finding.holds is False
            typer.echo(finding.to_json())

    try:
        driver = NvmlDriver(nvml_library)
        with contextlib.closing(driver):
            if restore:
                typer.echo(f"{check.restore(driver.gpus(), kept)}: its limit is put back")
                return
            print_findings(check.driver_findings(driver))
            for gpu in driver.gpus():
                print_findings(check.readings(gpu, seconds))
        if change:
            with contextlib.closing(check.changes(lambda: NvmlDriver(nvml_library), index, kept)) as findings:
                print_findings(findings)
    except FileExistsError:
        fail(f"{kept} has what an earlier check found: --restore it first")
    except (GpuError, OSError, ValueError, check.NotRestored) as error:
        fail(error)
    if failed:
        typer.echo(f"{failed} of the agent's assumptions do not hold here", err=True)
        raise typer.Exit(1)
