"""`flyball support-bundle`: what somebody needs who is to find out what is wrong, in one file, without secrets."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from flyball_api.names import DEFAULT_NAMESPACE

from flyball_cli.cluster.access import Access, Context, Kubeconfig, on_cluster, refusal
from flyball_cli.terminal.endings import fail
from flyball_cli.terminal.files import check_output_file

if TYPE_CHECKING:
    from flyball_kube.session import ApiSession

Json = dict[str, Any]

LEFT_OUT = "(left out)"
LOG_LINES = 2000
LOG_BYTES = 2 * 2**20
MOST_AGENTS = 20
# Of a collection; a cluster of ten thousand jobs fits.
MOST_OBJECTS = 20_000
OURS = "app.kubernetes.io/name=flyball"
OUR_ANNOTATIONS = "flyball.dev/"
# Of volumes: what a storage driver takes, which can be a password.
VALUES_LEFT_OUT = ("volumeAttributes", "options")


class BundleSource(Protocol):
    """Where a bundle is gathered from: a session with the API server."""

    async def get(self, path: str, **params: str) -> Json: ...

    async def text(self, path: str, **params: str) -> str: ...


@dataclass
class Bundle:
    """The files of a bundle by their names, and what could not be had, with the reason."""

    files: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, content: Any) -> None:
        self.files[name] = content if isinstance(content, str) else json.dumps(content, indent=1)

    def write(self, target: Path) -> None:
        """Write it as a compressed tar that only its owner can read. Raises FileExistsError."""
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, content in sorted(self.files.items()):
                data = content.encode()
                member = tarfile.TarInfo(f"{target.name.removesuffix('.tar.gz')}/{name}")
                member.size, member.mtime = len(data), int(datetime.now(UTC).timestamp())
                archive.addfile(member, io.BytesIO(data))


def without_secrets(value: Any, *, ours: bool = False) -> Any:
    """An object without what may be secret or is of no use: the values of environment variables, of probes' headers and
    of volumes' options, the command lines of containers that are not `ours`, annotations of others, who set which field,
    and whatever looks like a credential."""
    from flyball_kube.process.logs import redact

    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [without_secrets(each, ours=ours) for each in value]
    if not isinstance(value, Mapping):
        return value
    kept: Json = {}
    for name, each in value.items():
        if name == "managedFields":
            continue
        if name == "annotations" and isinstance(each, Mapping):
            kept[name] = {key: text for key, text in each.items() if key.startswith(OUR_ANNOTATIONS)}
        elif name in VALUES_LEFT_OUT and isinstance(each, Mapping):
            kept[name] = dict.fromkeys(each, LEFT_OUT)
        elif name in ("env", "httpHeaders") and isinstance(each, list):
            kept[name] = [
                {"name": str(item.get("name")), "value": LEFT_OUT} for item in each if isinstance(item, Mapping)
            ]
        elif name in ("command", "args") and isinstance(each, list) and not ours:
            kept[name] = [LEFT_OUT]
        else:
            kept[name] = without_secrets(each, ours=ours)
    return kept


def _collections(namespace: str) -> dict[str, tuple[str, dict[str, str]]]:
    """What is asked for: a file's name, and path and parameters of the collection that goes into it."""
    from flyball_api.names import LABEL_JOB_UID
    from flyball_kube import resources

    whole = (
        resources.POWER_CAPS, resources.GPU_NODES, resources.ENERGY_AWARE_JOBS, resources.ENERGY_PROFILES,
        resources.ENERGY_QUOTAS, resources.POWER_BRAKES, resources.BRAKE_ACKNOWLEDGEMENTS, resources.NODES,
    )  # fmt: skip
    apps = f"/apis/apps/v1/namespaces/{namespace}"
    return {
        **{f"objects/{each.plural}.json": (each.path(), {}) for each in whole},
        "objects/training-jobs.json": (resources.JOBS.path(), {"labelSelector": LABEL_JOB_UID}),
        "objects/training-pods.json": (resources.PODS.path(), {"labelSelector": LABEL_JOB_UID}),
        "installation/deployments.json": (f"{apps}/deployments", {}),
        "installation/daemonsets.json": (f"{apps}/daemonsets", {}),
        "installation/leases.json": (resources.LEASES.path(namespace), {}),
        "installation/events.json": (resources.EVENTS.path(namespace), {}),
        "installation/definitions.json": (resources.CRDS.path(), {"labelSelector": OURS}),
        "objects/events.json": (
            resources.EVENTS.path("default"),
            {},
        ),  # those of caps and nodes, which have no namespace
    }


async def gather(source: BundleSource, namespace: str) -> Bundle:
    """A bundle of the installation in `namespace`; what the API server refuses is noted, and is not the end.

    Raises ApiUnreachable where it does not answer the first question, and ApiError where it does not know who asks: then
    nothing can be had.
    """
    from flyball_kube.errors import ApiError, ApiUnreachable
    from flyball_kube.process.logs import redact
    from flyball_kube.process.package import package_version

    bundle = Bundle()
    server: Json | None = None
    try:
        server = await source.get("/version")
    except ApiError as error:
        if error.status == 401:
            raise
        bundle.missing["versions.json"] = refusal(error)

    async def listed(name: str, path: str, parameters: Mapping[str, str]) -> list[Json]:
        try:
            found = (await source.get(path, limit=str(MOST_OBJECTS), **parameters)).get("items") or []
        except ApiError as error:
            bundle.missing[name] = refusal(error)
            return []
        except ApiUnreachable as error:
            bundle.missing[name] = str(error)
            return []
        bundle.put(name, without_secrets(found, ours=name.startswith("installation/")))
        return list(found)

    for name, (path, parameters) in _collections(namespace).items():
        await listed(name, path, parameters)
    pods = await listed("installation/pods.json", f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": OURS})
    for pod, container, previous in _logs(pods):
        name = f"logs/{pod}.{container}{'.previous' if previous else ''}.log"
        parameters = {"container": container, "tailLines": str(LOG_LINES), "limitBytes": str(LOG_BYTES)}
        if previous:
            parameters["previous"] = "true"
        try:
            log = await source.text(f"/api/v1/namespaces/{namespace}/pods/{pod}/log", **parameters)
            bundle.put(name, redact(log))  # of a sidecar's, too, which knows nothing of our loggers
        except (ApiError, ApiUnreachable) as error:
            bundle.missing[name] = str(error)
    if server is not None:
        bundle.put("versions.json", {"server": server, "images": _images(pods), "client": package_version()})
    bundle.put("missing.json", bundle.missing)
    return bundle


def _images(pods: Iterable[Json]) -> list[str]:
    return sorted({status["imageID"] for pod in pods for status in _statuses(pod) if status.get("imageID")})


def _statuses(pod: Json) -> Sequence[Json]:
    return (pod.get("status") or {}).get("containerStatuses") or ()


def _logs(pods: Sequence[Json]) -> list[tuple[str, str, bool]]:
    """Which logs are taken: of every operator, and of so many agents, those in trouble first."""

    def trouble(pod: Json) -> int:
        return sum(status.get("restartCount", 0) + (not status.get("ready")) for status in _statuses(pod))

    def component(pod: Json) -> str:
        return str((pod["metadata"].get("labels") or {}).get("app.kubernetes.io/component"))

    agents = sorted((pod for pod in pods if component(pod) == "agent"), key=trouble, reverse=True)[:MOST_AGENTS]
    taken = [*(pod for pod in pods if component(pod) != "agent"), *agents]
    return [
        (pod["metadata"]["name"], status["name"], previous)
        for pod in taken
        for status in _statuses(pod)
        for previous in ([False, True] if status.get("restartCount") else [False])
    ]


def register(app: typer.Typer) -> None:
    """Add `flyball support-bundle`."""

    @app.command("support-bundle")
    def support_bundle(
        output: Annotated[
            Path | None, typer.Option(help="The file; by default flyball-support-TIME.tar.gz here.")
        ] = None,
        namespace: Annotated[str, typer.Option(help="Where Flyball is installed.")] = DEFAULT_NAMESPACE,
        kubeconfig: Kubeconfig = None,
        context: Context = None,
    ) -> None:
        """Gather objects, logs and versions for those who are to find out what is wrong.

        Left out are values of environment variables, of probes' headers and volumes' options, command lines of training
        containers, annotations of others, Secrets and ConfigMaps, and whatever looks like a credential. Look into
        it before you hand it on: names of jobs, namespaces and nodes are in it. What you have no right to read is missing,
        and `missing.json` says so.
        """
        from flyball_cli.terminal.printing import in_one_line

        target = output or Path(f"flyball-support-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")
        if target.exists():
            fail(f"{target} is there already")
        check_output_file("--output", target)

        async def work(session: ApiSession, _namespace: str) -> Bundle:
            return await gather(session, namespace)

        bundle = on_cluster(Access(kubeconfig, context), work)
        try:
            bundle.write(target)
        except OSError as error:
            fail(error)
        typer.echo(f"{target}: {len(bundle.files)} files")
        for name, reason in bundle.missing.items():
            typer.echo(in_one_line(f"  without {name}: {reason}"), err=True)
