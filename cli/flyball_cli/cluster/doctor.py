"""`flyball doctor`: what is wrong with an installation, and what would be right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from flyball_api.names import DEFAULT_NAMESPACE

from flyball_cli.cluster.access import Access, Context, Kubeconfig, OperatorNamespace, TextOutput, TextOutputOption

if TYPE_CHECKING:
    from flyball_kube.resources import Resource
    from flyball_kube.session import ApiSession
    from flyball_views.overview import Overview

    from flyball_cli.cluster.doctor_checks import Check, Facts

# What people do, and what they need for it: verb, group, resource.
RIGHTS = {
    "see jobs": ("list", "flyball.dev", "energyawarejobs"),
    "see caps and nodes": ("list", "flyball.dev", "powercaps"),
    "submit jobs": ("create", "flyball.dev", "energyawarejobs"),
    "change caps": ("patch", "flyball.dev", "powercaps"),
    "release nodes": ("patch", "flyball.dev", "gpunodes"),
    "declare emergencies": ("emergency", "flyball.dev", "powerbrakes"),
}
LOOK_SECONDS = 1.0


def register(app: typer.Typer) -> None:
    """Add `flyball doctor`."""

    @app.command()
    def doctor(
        wait: Annotated[
            float, typer.Option(min=0, max=600, help="Watch agents for so many seconds; 95 see those that are silent.")
        ] = 0.0,
        output: TextOutputOption = TextOutput.TEXT,
        operator_namespace: OperatorNamespace = DEFAULT_NAMESPACE,
        kubeconfig: Kubeconfig = None,
        context: Context = None,
    ) -> None:
        """Check an installation and say what would be right. It only reads. Status 1 where something fails.

        Definitions against what this program knows, admission policies, the operator's lead and clock, agents and GPUs,
        kubelets, caps, and your own rights. What you may not look at is unknown, and no failure.

        \b
          flyball doctor               what can be seen at once
          flyball doctor --wait 95     agents that have fallen silent, too
        """
        from flyball_cli.cluster.access import on_cluster
        from flyball_cli.cluster.doctor_checks import Verdict, checks

        access = Access(kubeconfig, context)
        facts = on_cluster(access, lambda session, _: gather(session, operator_namespace, wait))
        found = checks(facts)
        typer.echo(printed(found, output))
        if any(check.verdict is Verdict.FAIL for check in found):
            raise typer.Exit(1)


def printed(found: list[Check], output: TextOutput) -> str:
    """The checks as lines, what would be right below each that is not well; or as JSON."""
    from flyball_cli.terminal.printing import columns_text

    if output is TextOutput.JSON:
        import msgspec

        return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
    rows = []
    for check in found:
        rows.append([check.verdict.value, check.name, check.found])
        if check.right:
            rows.append(["", "", f"→ {check.right}"])
    return columns_text(rows, [False, False, False])


async def gather(session: ApiSession, operator_namespace: str, watch_seconds: float = 0.0) -> Facts:
    """What there is to know of an installation; raises ApiUnreachable, and ApiError where nothing may be read at all."""
    import asyncio

    from flyball_api.manifests import manifests
    from flyball_kube.process.package import package_version
    from flyball_kube.resources import CRDS, Resource
    from flyball_views.overview import Overview

    from flyball_cli.cluster.doctor_checks import Facts

    bindings = Resource(
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        namespaced=False,
    )
    own = {crd["metadata"]["name"]: crd for crd in manifests()}
    (overview, moved), crds, bound, server, nodes, rights = await asyncio.gather(
        _watched(session, operator_namespace, watch_seconds),
        _listed(session, CRDS),
        _listed(session, bindings),
        _version(session),
        _kubelets(session),
        _rights(session),
    )
    if overview is None:
        from datetime import UTC, datetime

        overview = Overview(datetime.now(UTC), operator_namespace=operator_namespace)
    names = None if bound is None else frozenset(str(item["spec"].get("policyName")) for item in bound)
    return Facts(
        overview=overview,
        client_version=f"flyball {package_version()}",
        own_definitions=own,
        definitions=None if crds is None else {item["metadata"]["name"]: item for item in crds},
        server_version=server,
        lease_moved=moved,
        policies=names,
        kubelets={name: text for name, text in nodes.items() if any(row.name == name for row in overview.nodes)},
        rights=rights,
        watched_seconds=watch_seconds,
    )


async def _listed(session: ApiSession, resource: Resource) -> list[dict[str, Any]] | None:
    """All objects of a kind; None where they may not be read, or where the kind is not there."""
    from flyball_kube.errors import ApiError

    from flyball_cli.cluster.reading import list_all

    try:
        return await list_all(session, resource)
    except ApiError as error:
        if error.status in (401, 403, 404):
            return None
        raise


async def _watched(
    session: ApiSession, operator_namespace: str, watch_seconds: float
) -> tuple[Overview | None, bool | None]:
    """The last overview, and whether the Lease was seen to move: until it was, or for `watch_seconds` where that is longer.

    Both are None where there are no CRDs, as the other checks say.
    """
    import asyncio

    from flyball_kube.errors import ApiError
    from flyball_views.sightings import Sightings

    from flyball_cli.cluster.reading import look

    sightings, loop = Sightings(), asyncio.get_running_loop()
    began = loop.time()
    first: Any = None
    moved: bool | None = None
    while True:
        try:
            found = await look(session, None, sightings, operator_namespace)
        except ApiError as error:
            if error.not_found:
                return None, None
            raise
        leader = found.leader
        if leader is None:
            moved = None
        elif first is None:
            first, moved = leader.renewed, False
        elif leader.renewed != first:
            moved = True
        longest = max(
            watch_seconds, 0.0 if leader is None or moved else float(leader.duration_seconds or 0) + LOOK_SECONDS
        )
        if loop.time() - began >= longest:
            return found, moved
        await asyncio.sleep(LOOK_SECONDS)


async def _version(session: ApiSession) -> str | None:
    from flyball_kube.errors import ApiError

    try:
        return str((await session.get("/version")).get("gitVersion") or "") or None
    except ApiError:
        return None


async def _kubelets(session: ApiSession) -> dict[str, str]:
    from flyball_kube.errors import ApiError
    from flyball_kube.resources import NODES

    from flyball_cli.cluster.reading import list_all

    try:
        nodes = await list_all(session, NODES)
    except ApiError:
        return {}
    return {
        str(node["metadata"]["name"]): str(
            ((node.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion") or ""
        )
        for node in nodes
    }


async def _rights(session: ApiSession) -> dict[str, bool]:
    import asyncio

    from flyball_kube.errors import ApiError

    async def allowed(verb: str, group: str, resource: str) -> bool:
        attributes = {"verb": verb, "group": group, "resource": resource}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = await session.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        return bool((answer.get("status") or {}).get("allowed"))

    try:
        answers = await asyncio.gather(*(allowed(*needed) for needed in RIGHTS.values()))
    except ApiError:
        return {}
    return dict(zip(RIGHTS, answers, strict=True))
