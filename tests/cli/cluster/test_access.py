"""What keeps a command from its cluster is one line that says what would be right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer
from flyball_cli.cluster.access import missing_right, refusal
from flyball_cli.cluster.why import kind_of, split_target
from flyball_cli.terminal.endings import invocation
from flyball_kube.errors import ApiError

from tests.support.command_line import flyball


def run(*arguments: str) -> tuple[int, str]:
    answer = flyball(*arguments)
    return answer.exit_code, answer.output


def kubeconfig(folder: Path, server: str = "https://127.0.0.1:1", namespace: str = "") -> Path:
    context = {"cluster": "k", "user": "u", **({"namespace": namespace} if namespace else {})}
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": context}],
        "clusters": [{"name": "k", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (
            'powercaps.flyball.dev is forbidden: User "ann" cannot list resource "powercaps" in API group "flyball.dev" at '
            "the cluster scope",
            "you have no right to list powercaps.flyball.dev in the whole cluster; the ClusterRole flyball-viewer has it",
        ),
        (
            'pods "train-1-0" is forbidden: User "ann" cannot get resource "pods/log" in API group "" in the namespace '
            '"team"',
            "you have no right to get pods/log in the namespace team; the ClusterRole view has it",
        ),
        (
            'gpunodes.flyball.dev "n" is forbidden: User "ann" cannot patch resource "gpunodes" in API group "flyball.dev" '
            "at the cluster scope",
            "you have no right to patch gpunodes.flyball.dev in the whole cluster; the ClusterRole flyball-sre has it",
        ),
        ("an admission policy says no", "an admission policy says no"),
    ],
)
def test_what_is_forbidden_names_the_right_and_who_has_it(said: str, meant: str) -> None:
    assert missing_right(said) == meant
    assert refusal(ApiError(403, "Forbidden", said, "GET /x")) == meant


def test_other_refusals_in_words() -> None:
    gone = ApiError(404, "NotFound", "the server could not find the requested resource", "GET /x")
    assert "Flyball is not installed" in refusal(gone)
    assert "who you are" in refusal(ApiError(401, "Unauthorized", "Unauthorized", "GET /x"))
    assert refusal(ApiError(500, "InternalError", "etcd", "GET /x")) == "GET /x: 500 InternalError: etcd"


@pytest.mark.parametrize("command", [("top", "--once"), ("why", "cap", "row")])
def test_no_cluster_is_one_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    status, output = run(*command, "--kubeconfig", str(kubeconfig(tmp_path)))
    assert status == 1
    assert output.startswith(f"flyball {command[0]}: no answer from https://127.0.0.1:1: ")
    assert output.count("\n") == 1


def test_no_kubeconfig_and_no_such_context_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, output = run("top", "--once", "--kubeconfig", str(tmp_path / "none"))
    assert (status, output.count("\n")) == (1, 1)
    assert output.endswith("none: No such file or directory\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    status, output = run("top", "--once")
    assert (status, output.count("\n")) == (1, 1)
    assert "No such file or directory; --kubeconfig FILE or $KUBECONFIG names another" in output
    status, output = run("top", "--once", "--kubeconfig", str(kubeconfig(tmp_path)), "--context", "other")
    assert status == 1
    assert "there is no context 'other'" in output


def test_a_plugin_says_how_it_is_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert invocation() == "flyball"
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-flyball", "top"])
    assert invocation() == "kubectl flyball"
    _, output = run("top", "--once", "--kubeconfig", str(kubeconfig(tmp_path)))
    assert output.startswith("kubectl flyball top: ")


@pytest.mark.parametrize(
    ("first", "second", "target"),
    [
        ("train", None, ("EnergyAwareJob", "train", None)),
        ("eaj/train", None, ("EnergyAwareJob", "train", None)),
        ("research/train", None, ("EnergyAwareJob", "train", "research")),
        ("cap", "row-a", ("PowerCap", "row-a", None)),
        ("powercaps.flyball.dev", "row-a", ("PowerCap", "row-a", None)),
        ("node/gpu-1", None, ("GPUNode", "gpu-1", None)),
    ],
)
def test_targets_as_kubectl_takes_them_and_jobs_as_reports_name_them(
    first: str, second: str | None, target: tuple[str, str, str | None]
) -> None:
    assert split_target(first, second) == target


def test_a_target_says_no_other_namespace_than_the_option() -> None:
    assert split_target("research/train", None, "research").namespace == "research"
    assert split_target("job/train", None, "research") == ("EnergyAwareJob", "train", "research")
    with pytest.raises(typer.BadParameter, match="of the namespace 'research', and --namespace says 'prod'"):
        split_target("research/train", None, "prod")


@pytest.mark.parametrize("kind", ["cap", "pcap", "node", "job"])
def test_a_kind_alone_asks_for_the_name(kind: str) -> None:
    with pytest.raises(typer.BadParameter, match=f"say why {kind} NAME; of a job that is called so: why job/{kind}"):
        split_target(kind, None)
    with pytest.raises(typer.BadParameter, match=f"say why {kind} NAME$"):
        split_target(f"{kind}/", None)
    assert split_target(f"job/{kind}", None) == ("EnergyAwareJob", kind, None)


def test_a_kind_that_is_none() -> None:
    with pytest.raises(typer.BadParameter, match=r"none of job \(eaj\), cap \(pcap\), node \(gpun\)"):
        kind_of("pods")
    with pytest.raises(typer.BadParameter, match=r"none of cap \(pcap\)$"):
        kind_of("pods", ("PowerCap",))
