"""`flyball support-bundle`: what is in it, what never is, and that what cannot be had is said."""

from __future__ import annotations

import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
from flyball_cli.cluster.support_bundle import MOST_AGENTS, Bundle, gather, without_secrets
from flyball_kube.errors import ApiError
from hypothesis import given
from hypothesis import strategies as st

from tests.support.command_line import flyball
from tests.support.control_plane import GROUP, IsolatedCluster

Json = dict[str, Any]
SECRET = "s3cr3t"
NAMESPACE = "flyball-system"


def pod(name: str, component: str = "operator", restarts: int = 0) -> Json:
    status = {"name": component, "restartCount": restarts, "ready": True, "imageID": "sha256:1"}
    return {
        "metadata": {"name": name, "labels": {"app.kubernetes.io/component": component}},
        "spec": {
            "containers": [{"name": component, "args": ["--namespace=x"], "env": [{"name": "A", "value": SECRET}]}]
        },
        "status": {"containerStatuses": [status]},
    }


class Cluster:
    """An API server that has some pods and a job, and refuses to show nodes."""

    def __init__(self, *pods: Json) -> None:
        self.pods = pods
        self.asked: list[str] = []

    async def get(self, path: str, **params: str) -> Json:
        self.asked.append(path)
        if path == "/version":
            return {"gitVersion": "v1.36.3"}
        if path.endswith("/nodes"):
            raise ApiError(403, "Forbidden", 'nodes is forbidden: User "x" cannot list resource "nodes"', f"GET {path}")
        if path.endswith(f"{NAMESPACE}/pods"):
            return {"items": list(self.pods)}
        if path.endswith("/energyawarejobs"):
            trainer = {
                "name": "trainer",
                "command": ["train", f"--token={SECRET}"],
                "env": [
                    {"name": "TOKEN", "value": SECRET},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"key": SECRET}}},
                ],
            }
            metadata = {
                "name": "train",
                "annotations": {
                    "kubectl.kubernetes.io/last-applied-configuration": SECRET,
                    "flyball.dev/release": "true",
                },
                "managedFields": [{"manager": SECRET}],
            }
            return {"items": [{"metadata": metadata, "spec": {"template": {"spec": {"containers": [trainer]}}}}]}
        return {"items": []}

    async def text(self, path: str, **params: str) -> str:
        self.asked.append(path + ("?previous" if "previous" in params else ""))
        assert int(params["limitBytes"]) <= 2 * 2**20
        return "a line\n"


def test_headers_options_and_what_looks_like_a_credential_are_left_out() -> None:
    made = without_secrets(
        {
            "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": SECRET}]}},
            "volumes": [
                {"csi": {"driver": "smb", "volumeAttributes": {"password": SECRET}}},
                {"flexVolume": {"options": {"passwd": SECRET}}},
            ],
            "endpoint": f"https://reader:{SECRET}@prometheus",
            "message": f"Authorization: Bearer {SECRET}",
        },
        ours=True,
    )
    assert SECRET not in json.dumps(made)
    assert made["volumes"][0]["csi"] == {"driver": "smb", "volumeAttributes": {"password": "(left out)"}}
    assert made["endpoint"].endswith("@prometheus")


async def test_what_looks_like_a_credential_is_left_out_of_logs() -> None:
    class Talkative(Cluster):
        async def text(self, path: str, **params: str) -> str:
            return f"sidecar: Authorization: Bearer {SECRET}\n"

    bundle = await gather(Talkative(pod("operator-1")), NAMESPACE)
    assert "sidecar: Authorization: Bearer" in bundle.files["logs/operator-1.operator.log"]
    assert SECRET not in json.dumps(bundle.files)


async def test_no_secret_is_in_it_and_what_is_refused_is_said(tmp_path: Path) -> None:
    cluster = Cluster(pod("operator-1", restarts=1), pod("agent-1", "agent"))
    bundle = await gather(cluster, NAMESPACE)
    assert not any("secrets" in path or "configmaps" in path for path in cluster.asked)
    whole = json.dumps(bundle.files)
    assert SECRET not in whole
    (job,) = json.loads(bundle.files["objects/energyawarejobs.json"])
    assert job["metadata"]["annotations"] == {"flyball.dev/release": "true"}
    (trainer,) = job["spec"]["template"]["spec"]["containers"]
    assert [item["name"] for item in trainer["env"]] == ["TOKEN", "B"]
    assert "--namespace=x" in bundle.files["installation/pods.json"], "our own arguments are what is asked about"
    logs = sorted(name for name in bundle.files if name.startswith("logs/"))
    assert logs == ["logs/agent-1.agent.log", "logs/operator-1.operator.log", "logs/operator-1.operator.previous.log"]
    assert "nodes" in bundle.missing["objects/nodes.json"]
    assert json.loads(bundle.files["missing.json"]) == bundle.missing

    target = tmp_path / "bundle.tar.gz"
    bundle.write(target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with tarfile.open(target) as archive:
        assert "bundle/versions.json" in archive.getnames()
    with pytest.raises(FileExistsError):
        bundle.write(target)


async def test_of_many_agents_those_in_trouble_are_taken() -> None:
    agents = [pod(f"agent-{index:03}", "agent", restarts=int(index == 400)) for index in range(500)]
    bundle = await gather(Cluster(*agents), NAMESPACE)
    taken = {name.split("/")[1].split(".")[0] for name in bundle.files if name.startswith("logs/")}
    assert len(taken) == MOST_AGENTS
    assert "agent-400" in taken


values = st.recursive(
    st.sampled_from([SECRET, 1, None]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(value=values, name=st.sampled_from(["env", "command", "args"]))
def test_whatever_stands_where_a_secret_may_stand_is_left_out(value: Any, name: str) -> None:
    found = {"spec": {"containers": [{name: [{"name": "X", "value": value, "valueFrom": value}]}]}}
    assert SECRET not in json.dumps(without_secrets(found))


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "mine.tar.gz"
    target.write_text("mine")
    answer = flyball("support-bundle", "--output", str(target))
    assert answer.exit_code == 1
    assert "is there already" in answer.output
    assert target.read_text() == "mine"


def test_without_a_cluster_there_is_one_line_and_no_file(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
                "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "me", "user": {"token": "x"}}],
            }
        )
    )
    target = tmp_path / "bundle.tar.gz"
    answer = flyball("support-bundle", "--output", str(target), "--kubeconfig", str(kubeconfig))
    assert answer.exit_code == 1
    (line,) = answer.output.splitlines()
    assert "support-bundle: no answer from http://127.0.0.1:1" in line
    assert not target.exists()


async def test_whom_the_api_server_does_not_know_gets_no_bundle() -> None:
    class Stranger(Cluster):
        async def get(self, path: str, **params: str) -> Json:
            raise ApiError(401, "Unauthorized", "Unauthorized", f"GET {path}")

    with pytest.raises(ApiError):
        await gather(Stranger(), NAMESPACE)


async def test_a_version_that_is_refused_is_noted_and_not_the_end() -> None:
    class Shy(Cluster):
        async def get(self, path: str, **params: str) -> Json:
            if path == "/version":
                raise ApiError(403, "Forbidden", "not for you", "GET /version")
            return await super().get(path, **params)

    bundle = await gather(Shy(pod("operator-1")), NAMESPACE)
    assert bundle.missing["versions.json"] == "not for you"
    assert "versions.json" not in bundle.files
    assert "logs/operator-1.operator.log" in bundle.files


def test_it_is_gathered_from_a_real_api_server(cluster: IsolatedCluster, tmp_path: Path) -> None:
    cap = {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "PowerCap",
        "metadata": {"name": "row"},
        "spec": {"watts": 5000},
    }
    cluster.api.create(f"{GROUP}/powercaps", cap)
    cluster.add_nodes(1)
    target = tmp_path / "bundle.tar.gz"
    arguments = ["support-bundle", "--output", str(target), "--kubeconfig", str(cluster.devcluster.kubeconfig)]
    answer = flyball(*arguments)
    assert answer.exit_code == 0, answer.output
    with tarfile.open(target) as archive:

        def read(name: str) -> Any:
            file = archive.extractfile(f"bundle/{name}")
            assert file is not None
            return json.load(file)

        assert [each["metadata"]["name"] for each in read("objects/powercaps.json")] == ["row"]
        assert len(read("objects/nodes.json")) == 1
        assert {"powercaps.flyball.dev", "gpunodes.flyball.dev"} <= {
            each["metadata"]["name"] for each in read("installation/definitions.json")
        }
        assert read("versions.json")["server"]["gitVersion"].startswith("v1.")
        # No kubelet is behind these nodes: the logs of what only seems to run there cannot be had.
        assert all(name.startswith("logs/") for name in read("missing.json"))


def test_an_empty_bundle_can_be_written(tmp_path: Path) -> None:
    Bundle().write(tmp_path / "empty.tar.gz")
    with tarfile.open(tmp_path / "empty.tar.gz") as archive:
        assert archive.getnames() == []
