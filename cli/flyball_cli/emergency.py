"""`flyball emergency`: everything under a cap to its smallest limits, by one write."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `flyball emergency`."""

    @app.command()
    def emergency(
        cap: Annotated[str, typer.Option(help="The PowerCap whose nodes are meant.")],
        end: Annotated[bool, typer.Option("--end", help="End the emergency instead of declaring one.")] = False,
        reason: Annotated[str, typer.Option(help="Why, for those who read the cap's status.")] = "",
        kubeconfig: Annotated[
            Path | None, typer.Option(help="Where the API server is; the usual file where this is not given.")
        ] = None,
    ) -> None:
        """Take every GPU under a cap to its smallest limit now, foreign pods' too, also where no operator runs.

        Nothing ends it but --end; limits then return with the operator's next grants. It needs the verb `emergency` on
        the PowerBrake of the cap's name, which the role flyball-sre has.
        """
        import asyncio

        from flyball_api.power_brake import PowerBrake
        from flyball_kube.credentials import CredentialsError, load_configuration
        from flyball_kube.emergency import NoSuchEmergency, declare_emergency, end_emergency
        from flyball_kube.errors import ApiError, ApiUnreachable
        from flyball_kube.session import ApiSession

        async def write() -> PowerBrake:
            async with ApiSession(load_configuration(kubeconfig)) as session:
                return await (end_emergency(session, cap) if end else declare_emergency(session, cap, reason))

        try:
            brake = asyncio.run(write())
        except (ApiError, ApiUnreachable, CredentialsError, NoSuchEmergency, ValueError) as error:
            typer.echo(f"flyball emergency: {error}", err=True)
            raise typer.Exit(1) from error
        if end:
            typer.echo(f"{cap}: the emergency is ended; limits return with the operator's next grants")
            return
        typer.echo(f"{cap}: every GPU under it goes to its smallest limit (PowerBrake {tuple(brake.version)}).")
        typer.echo(f"See it done:  kubectl get powercap {cap} -o yaml    # Emergency, committedWatts")
        typer.echo(f"End it:       flyball emergency --cap {cap} --end")
