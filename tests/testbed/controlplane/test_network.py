"""The addresses of a cluster with real nodes: each its own, and the link's clear of what the machine uses."""

from __future__ import annotations

import ipaddress

import pytest
from flyball_testbed.controlplane import network
from flyball_testbed.controlplane.components import SERVICE_RANGE


def test_nodes_pods_and_services_do_not_overlap() -> None:
    nodes = [ipaddress.IPv4Address(network.node_address(index)) for index in range(1, 10)]
    pods = [ipaddress.IPv4Network(network.pod_range(index)) for index in range(1, 10)]
    bridge = ipaddress.IPv4Interface(f"{network.BRIDGE_ADDRESS}/{network.NODE_PREFIX_BITS}")
    assert len({bridge.ip, *nodes}) == 10
    assert all(node in bridge.network for node in nodes)
    assert all(each.subnet_of(ipaddress.IPv4Network(network.POD_RANGE)) for each in pods)
    apart = [*pods, bridge.network, ipaddress.IPv4Network(SERVICE_RANGE), network.LINK_RANGE]
    assert not any(one.overlaps(other) for index, one in enumerate(apart) for other in apart[:index])


def test_the_links_network_is_one_that_the_machine_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    free = ipaddress.IPv4Network("198.19.255.252/30")
    monkeypatch.setattr(network, "_networks_in_use", lambda: list(network.LINK_RANGE.address_exclude(free)))
    tried = iter([int(network.LINK_RANGE[0]), int(network.LINK_RANGE[4]), int(free[0])])
    monkeypatch.setattr(network.random, "randrange", lambda *_range: next(tried))
    ours, theirs = network._free_link()
    assert {ours, theirs} == {str(host) for host in free.hosts()}
    monkeypatch.undo()
    monkeypatch.setattr(network, "LINK_ATTEMPTS", 3)
    monkeypatch.setattr(network, "_networks_in_use", lambda: [network.LINK_RANGE])
    with pytest.raises(network.NetworkError, match="no free network"):
        network._free_link()


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(network.NetworkError, match="no program 'no-such-tool'"):
        network.tool("no-such-tool")
