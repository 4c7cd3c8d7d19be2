"""`flyball emergency`: everything under a cap to its smallest limits, by one write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flyball_cli.cluster.access import Access, Context, Kubeconfig

if TYPE_CHECKING:
    from flyball_kube.session import ApiSession


def register(app: typer.Typer) -> None:
    """Add `flyball emergency`."""

    @app.command()
    def emergency(
        cap: Annotated[str, typer.Option(help="The PowerCap whose nodes are meant.")],
        end: Annotated[bool, typer.Option("--end", help="End the emergency instead of declaring one.")] = False,
        reason: Annotated[str, typer.Option(help="Why, for those who read the cap's status.")] = "",
        kubeconfig: Kubeconfig = None,
        context: Context = None,
    ) -> None:
        """Take every GPU under a cap to its smallest limit now, whatever runs on it, with or without an operator.

        Nothing ends it but --end; limits then return with the operator's next grants. It needs the verb `emergency` on
        the PowerBrake of the cap's name, which the role flyball-sre has.

        \b
          flyball emergency --cap row-a --reason "smoke in row a"
          flyball why cap row-a
          flyball emergency --cap row-a --end
        """
        from flyball_cli.cluster.access import on_cluster
        from flyball_cli.terminal.endings import invocation

        access = Access(kubeconfig, context)
        on_cluster(access, lambda session, _: _write(session, cap, end, reason))
        if end:
            typer.echo(f"{cap}: the emergency is ended; limits return with the operator's next grants")
            return
        typer.echo(f"{cap}: every GPU under it goes to its smallest limit.")
        typer.echo("See it done:  kubectl get gpunodes     (MODE Floor, LIMITS)")
        typer.echo(f"What it does: {invocation()} why cap {cap}")
        typer.echo(f"End it:       {invocation()} emergency --cap {cap} --end")


async def _write(session: ApiSession, cap: str, end: bool, reason: str) -> None:
    from flyball_kube.emergency import declare_emergency, end_emergency

    await (end_emergency(session, cap) if end else declare_emergency(session, cap, reason))
