"""What the page's process says of how it is served."""

from __future__ import annotations

import pytest
from flyball_page.main import serve
from flyball_page.options import PageOptions


class NoCluster(Exception):
    """Where the page would connect to a cluster."""


async def said_at_start(options: PageOptions, caplog: pytest.LogCaptureFixture, patch: pytest.MonkeyPatch) -> str:
    async def connect(_kubeconfig: object) -> None:
        raise NoCluster

    patch.setattr("flyball_page.main.ApiSession.connect", connect)
    caplog.clear()
    with pytest.raises(NoCluster):
        await serve(options)
    return caplog.text


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.7"])  # noqa: S104
async def test_a_page_that_anybody_can_read_is_warned_of_with_what_would_be_right(
    address: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = await said_at_start(PageOptions(address=address), caplog, monkeypatch)
    assert "WARNING" in said
    assert address in said
    assert "anybody who reaches this address can read" in said
    assert "--authenticate" in said
    assert "--address 127.0.0.1" in said
    assert await said_at_start(PageOptions(address=address, authenticate=True), caplog, monkeypatch) == ""


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
async def test_a_page_for_this_machine_alone_is_served_without_a_warning(
    address: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await said_at_start(PageOptions(address=address), caplog, monkeypatch) == ""
