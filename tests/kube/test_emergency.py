"""The emergency lever on the real API server, as an account that has nothing but the SREs' role."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from flyball_api.power_brake import PowerBrakeSpec, power_brake_object, read_power_brake
from flyball_kube import emergency
from flyball_kube.credentials import load_configuration
from flyball_kube.emergency import NoSuchEmergency, declare_emergency, end_emergency
from flyball_kube.errors import ApiError
from flyball_kube.resources import POWER_BRAKES, POWER_CAPS
from flyball_kube.session import ApiSession

from tests.support.control_plane import IsolatedCluster
from tests.support.waiting import until

RBAC = "/apis/rbac.authorization.k8s.io/v1"
CAP = "hall"


@pytest.fixture
async def admin(cluster: IsolatedCluster) -> AsyncIterator[ApiSession]:
    async with ApiSession(load_configuration(cluster.devcluster.kubeconfig)) as session:
        body = {"apiVersion": "flyball.dev/v1alpha1", "kind": "PowerCap", "metadata": {"name": CAP}}
        await session.create(POWER_CAPS.path(), body | {"spec": {"watts": 1000}})
        yield session


@pytest.fixture
async def sre(cluster: IsolatedCluster, admin: ApiSession) -> AsyncIterator[Path]:
    """The kubeconfig of an account with the role flyball-sre."""
    name, namespace = "sre", cluster.namespace
    await admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
    binding = {
        "metadata": {"name": f"sre-{namespace}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "flyball-sre"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    await admin.create(f"{RBAC}/clusterrolebindings", binding)
    yield await asyncio.to_thread(cluster.devcluster.control_plane.service_account_kubeconfig, namespace, name)
    await admin.delete(f"{RBAC}/clusterrolebindings/sre-{namespace}")


async def standing(session: ApiSession) -> PowerBrakeSpec:
    return read_power_brake(await session.get(POWER_BRAKES.path(name=CAP))).spec


async def test_an_emergency_is_declared_by_one_write_and_ended_by_another(admin: ApiSession, sre: Path) -> None:
    async with ApiSession(load_configuration(sre)) as session:

        async def declared() -> bool:
            try:
                await declare_emergency(session, CAP, "smoke")
            except ApiError as error:
                return error.status != 403  # the role takes a moment to be in force
            return True

        await until(declared, "the role")
        assert await standing(admin) == PowerBrakeSpec(0, 1, 0, "Active", "smoke")
        await declare_emergency(session, CAP, "smoke")  # once more changes nothing
        assert (await standing(admin)).sequence == 1
        await end_emergency(session, CAP)
        assert await standing(admin) == PowerBrakeSpec(0, 2, 0, "Ended", "smoke")
        with pytest.raises(NoSuchEmergency, match="no emergency is declared for the cap hall"):
            await end_emergency(session, CAP)


async def test_it_goes_over_a_brake_that_the_operator_writes_at_the_same_moment(
    admin: ApiSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admin.create(POWER_BRAKES.path(), power_brake_object(CAP, PowerBrakeSpec(4, 7, 500_000)))
    reads: list[Any] = []
    read = emergency._read

    async def read_and_be_overtaken(session: ApiSession, cap: str) -> object:
        found = await read(session, cap)
        if not reads:
            await admin.patch(POWER_BRAKES.path(name=CAP), {"spec": {"sequence": 8, "keptMillionths": 300_000}})
        reads.append(found)
        return found

    monkeypatch.setattr(emergency, "_read", read_and_be_overtaken)
    await declare_emergency(admin, CAP)
    assert len(reads) == 2
    assert await standing(admin) == PowerBrakeSpec(4, 9, 0, "Active")


async def test_what_cannot_be_meant_is_refused_with_its_reason(admin: ApiSession) -> None:
    with pytest.raises(NoSuchEmergency, match="there is no PowerCap nowhere"):
        await declare_emergency(admin, "nowhere")
    with pytest.raises(NoSuchEmergency, match="no emergency is declared"):
        await end_emergency(admin, CAP)
    with pytest.raises(ValueError, match="at most 256 fit"):
        await declare_emergency(admin, CAP, "x" * 257)
