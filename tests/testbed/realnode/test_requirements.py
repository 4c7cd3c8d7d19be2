"""What a machine lacks for real nodes is said, with what would help, before anything is started."""

from __future__ import annotations

import pytest
from flyball_testbed.controlplane.network import NetworkError
from flyball_testbed.realnode import requirements
from flyball_testbed.realnode.cluster import RealCluster, UnfitMachineError


def test_without_root_nothing_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements.os, "geteuid", lambda: 1000)
    assert requirements.obstacles() == ["real nodes need root: namespaces, mounts and control groups are made"]


def test_missing_programs_are_named_by_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_tool(name: str) -> str:
        if name in ("nft", "ip"):
            raise NetworkError(name)
        return f"/usr/bin/{name}"

    monkeypatch.setattr(requirements.os, "geteuid", lambda: 0)
    monkeypatch.setattr(requirements.network, "tool", no_tool)
    monkeypatch.setattr(requirements.shutil, "which", lambda _name: None)
    monkeypatch.setattr(requirements.cgroups, "obstacle", lambda: "the control groups lack memory")
    assert requirements.obstacles() == [
        "programs are missing (apt-get install iproute2 nftables runc)",
        "the control groups lack memory",
    ]


def test_a_cluster_is_refused_with_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "obstacles", lambda: ["no this", "no that"])
    with pytest.raises(UnfitMachineError, match="no this\nno that"):
        RealCluster.start()


@pytest.mark.parametrize("nodes", [0, 10])
def test_as_many_nodes_as_there_are_addresses_for(nodes: int) -> None:
    with pytest.raises(ValueError, match=f"{nodes} real nodes: 1 to 9"):
        RealCluster.start(nodes)
