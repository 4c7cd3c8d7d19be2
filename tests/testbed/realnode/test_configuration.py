"""What a real node's programs are told: it is its own place, sets no kernel, and has GPUs only where it has."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from flyball_api.names import LABEL_GPU_PRODUCT, STARTUP_TAINT
from flyball_testbed.controlplane.programs.binaries import CONTAINERD, KUBE_PROXY, KUBELET, NODE_PROGRAMS
from flyball_testbed.realnode.configuration import (
    DEVICE_PLUGIN,
    DNS,
    Machine,
    containerd_configuration,
    kube_proxy_configuration,
    kubelet_configuration,
    pod_network,
    service_commands,
)

PRODUCT = "NVIDIA-A100-SXM4-40GB"
WITH_GPUS = Machine(
    name="real-2",
    index=2,
    pki="/cluster/pki",
    directory="/cluster/real-2",
    runtime="/usr/sbin/runc",
    programs={program: f"/programs/{program}" for program in NODE_PROGRAMS},
    server_url="https://10.65.0.1:6443",
    gpu_product=PRODUCT,
    hardware="/cluster/real-2/real-2.gpus",
    gpu_library="/cluster/lib/libnvidia-ml.so.1",
)
WITHOUT_GPUS = replace(WITH_GPUS, gpu_product="", hardware="")


def runtime_of(machine: Machine) -> str:
    plugins = tomllib.loads(containerd_configuration(machine))["plugins"]
    name = plugins["io.containerd.cri.v1.runtime"]["containerd"]["runtimes"]["runc"]["options"]["BinaryName"]
    return str(name)


def test_a_machine_is_read_as_it_was_written(tmp_path: Path) -> None:
    WITH_GPUS.write(tmp_path / "machine.json")
    assert Machine.read(tmp_path / "machine.json") == WITH_GPUS


def test_a_node_with_gpus_brings_the_driver_and_offers_them() -> None:
    assert runtime_of(WITH_GPUS) == "/cluster/real-2/nvidia-container-runtime"
    commands = service_commands(WITH_GPUS)
    assert list(commands) == [CONTAINERD, KUBELET, KUBE_PROXY, DNS, DEVICE_PLUGIN], "containerd before who needs it"
    assert f"--node-labels={LABEL_GPU_PRODUCT}={PRODUCT}" in commands[KUBELET]


def test_a_node_without_gpus_is_a_plain_one() -> None:
    assert runtime_of(WITHOUT_GPUS) == "/usr/sbin/runc"
    commands = service_commands(WITHOUT_GPUS)
    assert DEVICE_PLUGIN not in commands
    assert not any("nvidia" in argument for argument in commands[KUBELET])


def test_the_kubelet_would_fail_rather_than_set_the_machines_kernel() -> None:
    told = yaml.safe_load(kubelet_configuration(WITH_GPUS, "/flyball/1-2"))
    assert told["protectKernelDefaults"] is True
    assert told["makeIPTablesUtilChains"] is False
    assert told["cgroupRoot"] == "/flyball/1-2"
    assert told["address"] == WITH_GPUS.address
    assert told["clusterDNS"] == [WITH_GPUS.address], "its own name server"
    proxy = yaml.safe_load(kube_proxy_configuration(WITH_GPUS))
    assert proxy["conntrack"] == {"maxPerCore": 0, "min": 0}


@pytest.mark.parametrize("tainted", [False, True])
def test_the_startup_taint_is_there_where_it_is_asked_for(tainted: bool) -> None:
    told = yaml.safe_load(kubelet_configuration(replace(WITH_GPUS, startup_taint=tainted), "/flyball/1-2"))
    assert [taint["key"] for taint in told["registerWithTaints"]] == ([STARTUP_TAINT] if tainted else [])


def test_pods_have_addresses_of_their_node() -> None:
    (link,) = json.loads(pod_network(WITH_GPUS))["plugins"]
    assert link["ipam"]["ranges"] == [[{"subnet": "10.64.2.0/24"}]]
    assert pod_network(WITH_GPUS) != pod_network(replace(WITH_GPUS, index=3))
