"""The agent's options: defaults that agree with the operator's, the environment, and combinations that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from flyball_agent.enforce.journal import Journal
from flyball_agent.enforce.records import FoundGpu, found_gpus
from flyball_agent.enforce.requests import Requests
from flyball_agent.process import start
from flyball_agent.process.options import AgentOptions
from flyball_api.names import DEFAULT_NAMESPACE, LEADER_LEASE
from flyball_api.values.units import MilliwattsPerGpu
from flyball_operator.settings import Settings

from tests.support.command_line import flyball

BASE = Path(__file__).parents[3] / "deploy" / "base"


def test_agents_look_for_the_lease_where_the_operator_puts_it_and_may_read_it_there() -> None:
    (role,) = [
        manifest
        for manifest in yaml.safe_load_all((BASE / "agent-rbac.yaml").read_text())
        if manifest["kind"] == "Role"
    ]
    namespaces = {AgentOptions("node-0").namespace, Settings().namespace, role["metadata"]["namespace"]}
    assert namespaces == {DEFAULT_NAMESPACE}
    assert role["rules"][0]["resourceNames"] == [LEADER_LEASE]


@pytest.mark.parametrize(
    ("arguments", "environment", "namespace"),
    [
        ([], {}, DEFAULT_NAMESPACE),
        (["--namespace", "power"], {}, "power"),
        ([], {"FLYBALL_NAMESPACE": "power"}, "power"),
        (["--namespace", "power"], {"FLYBALL_NAMESPACE": "other"}, "power"),
    ],
)
def test_the_operators_namespace_is_an_option_and_a_variable(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], environment: dict[str, str], namespace: str
) -> None:
    started: list[AgentOptions] = []
    monkeypatch.setattr(start, "become", lambda options, _: started.append(options))
    result = flyball("agent", "run", *arguments, env={"NODE_NAME": "gpu-07", **environment})
    assert result.exit_code == 0, result.output
    assert [(options.node_name, options.namespace) for options in started] == [("gpu-07", namespace)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"driver": "magic"}, "driver 'magic' is unknown"),
        ({"mode": "look"}, "mode 'look' is unknown"),
        ({"pods": "guess"}, "pods from 'guess' are unknown"),
        ({"driver": "simulated"}, "needs the hardware directory"),
        ({"pods": "file"}, "pods from a file need the hardware directory"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AgentOptions("node-0", **options)


def test_pods_come_from_the_file_beside_simulated_hardware_and_else_from_the_kubelet() -> None:
    assert AgentOptions("node-0").pods_from == "kubelet"
    simulated = AgentOptions("node-0", driver="simulated", hardware_dir=Path("hw"))
    assert (simulated.pods_from, simulated.hardware_file("gpus")) == ("file", Path("hw/node-0.gpus"))
    assert AgentOptions("node-0", driver="simulated", hardware_dir=Path("hw"), pods="kubelet").pods_from == "kubelet"


def test_a_gpu_that_was_taken_out_is_forgotten_on_request_and_a_strange_one_is_refused(tmp_path: Path) -> None:
    arguments = ["agent", "forget", "--node-name", "node-0", "--journal-dir", str(tmp_path), "--gpu"]
    result = flyball(*arguments, "GPU-1")
    assert result.exit_code == 1
    assert "node-0.journal" in result.stderr
    journal = Journal(tmp_path, "node-0")  # as of a running agent: the request needs no lock
    watts = MilliwattsPerGpu(100_000)
    journal.note(found_gpus([FoundGpu("GPU-1", "A100", watts, watts, watts, watts)]))
    assert flyball(*arguments, "GPU-1").exit_code == 0
    assert Requests(tmp_path, "node-0").take_forgotten() == ["GPU-1"]
    result = flyball(*arguments, "GPU-2")
    assert result.exit_code == 1
    assert "GPU GPU-2 is not remembered (remembered: GPU-1)" in " ".join(result.stderr.split())
    journal.close()
