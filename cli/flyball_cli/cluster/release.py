"""`flyball release`: the word that a deleted cap or node need hold its watts no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball_cli.cluster.access import Access, CommandError, Context, Kubeconfig, listing

if TYPE_CHECKING:
    from flyball_api.gpu_node import GpuNode
    from flyball_kube.session import ApiSession

_MEANING = {
    "PowerCap": "it is held no more at once: what it bounds may rise to what other caps and the GPUs allow",
    "GPUNode": (
        "its watts are given to others at once. Say so only of a machine that draws nothing there any more: switched off, "
        "or moved to other caps"
    ),
}


def register(app: typer.Typer) -> None:
    """Add `flyball release`."""

    @app.command()
    def release(
        kind: Annotated[str, typer.Argument(metavar="cap|node", help="cap (pcap) or node (gpunode).")],
        name: Annotated[str, typer.Argument(help="Its name.")],
        yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
        undo: Annotated[
            bool, typer.Option("--undo", help="Withdraw the release, where it has not been acted on.")
        ] = False,
        kubeconfig: Kubeconfig = None,
        context: Context = None,
    ) -> None:
        """Say that a deleted cap or GPUNode, or a node's former caps, need not hold any more.

        A deleted cap goes on holding for its releaseSeconds, a deleted GPUNode without end: that an object is gone proves
        nothing of the hardware. This says that it need not hold, by the annotation flyball.dev/release. It asks first;
        without a terminal it needs --yes.

        \b
          kubectl delete powercap row-a --wait=false
          flyball release cap row-a
          kubectl delete gpunode gpu-07 --wait=false
          flyball release node gpu-07
        """
        from flyball_cli.cluster.access import on_cluster
        from flyball_cli.cluster.why import kind_of

        of_kind = kind_of(kind, tuple(_MEANING))
        if of_kind not in _MEANING:
            raise typer.BadParameter("only a cap or a node can be released (jobs: kubectl delete)")
        access = Access(kubeconfig, context)
        held, uid = on_cluster(access, lambda session, _: _held(session, of_kind, name))
        typer.echo(f"{of_kind} {name}: {held}")
        if not undo and not yes:
            typer.echo(f"Released, {_MEANING[of_kind]}.")
            if not typer.confirm("Release it?"):
                raise typer.Exit(1)
        on_cluster(access, lambda session, _: _annotate(session, of_kind, name, uid, undo))
        typer.echo("the word is taken back" if undo else "released: the operator lets it go with its next cycle")


def _resource(kind: str) -> Any:
    from flyball_kube.resources import GPU_NODES, POWER_CAPS

    return {"PowerCap": POWER_CAPS, "GPUNode": GPU_NODES}[kind]


async def _held(session: ApiSession, kind: str, name: str) -> tuple[str, str]:
    """What the object holds, in words, and its UID; raises CommandError where there is none."""
    from flyball_api.gpu_node import read_gpu_node
    from flyball_api.power_cap import read_power_cap
    from flyball_kube.errors import ApiError
    from flyball_views.texts import watts_text

    try:
        raw = await session.get(_resource(kind).path(name=name))
    except ApiError as error:
        if error.not_found and "could not find the requested resource" not in error.message:
            raise CommandError(f"there is no {kind} {name} ({listing(kind)})") from error
        raise
    if kind == "PowerCap":
        cap = read_power_cap(raw)
        deleted = "deleted, and held" if cap.metadata.deleting else "not deleted; the word counts once it is"
        return f"{deleted}; {watts_text(cap.status.effective_watts)} in force", cap.uid
    node = read_gpu_node(raw)
    return what_a_node_holds(node), node.metadata.uid


def what_a_node_holds(node: GpuNode) -> str:
    """What it was granted, and the most that its GPUs could draw: that much counts where nobody vouches for its limits."""
    from flyball_api.values.units import MILLIWATTS_PER_WATT, of_gpus
    from flyball_views.texts import watts_text

    granted = None if node.grant is None else node.grant.committed.limit_milliwatts / MILLIWATTS_PER_WATT
    devices = node.status.devices
    known = devices and all(device.limits_known for device in devices)
    largest = of_gpus(device.limits.max_milliwatts for device in devices) / MILLIWATTS_PER_WATT if known else None
    deleted = "deleted, and held" if node.metadata.deleting else "not deleted"
    former = f", still under its former labels {list(map(dict, node.former_labels))}" if node.former_labels else ""
    unproven = f"{watts_text(largest)} where its limits are not proven any more"
    return f"{deleted}{former}; it counts with {watts_text(granted)}, or with {unproven}"


async def _annotate(session: ApiSession, kind: str, name: str, uid: str, undo: bool) -> None:
    """Write the word on the very object that was shown: the API server refuses it for one that was made anew meanwhile."""
    from flyball_api.names import ANNOTATION_RELEASE
    from flyball_kube.errors import ApiError

    value = None if undo else "true"
    body = {"metadata": {"uid": uid, "annotations": {ANNOTATION_RELEASE: value}}}
    try:
        await session.patch(_resource(kind).path(name=name), body)
    except ApiError as error:
        if error.not_found or error.conflict:
            raise CommandError(f"{kind} {name} is not the one that was shown any more: look again") from error
        raise
