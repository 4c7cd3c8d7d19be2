"""The options of the page's process, each with its default; the command line is made from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from flyball_api.names import DEFAULT_NAMESPACE
from flyball_kube.process.options import option
from flyball_kube.serving.names import LOOPBACK_ADDRESSES, LOOPBACK_NAMES


@dataclass(frozen=True, slots=True)
class PageOptions:
    """How one page is served; raises ValueError for what cannot be."""

    kubeconfig: Path | None = field(
        default=None,
        metadata=option("Where the API server is; default: the pod's service account, or the usual kubeconfig."),
    )
    namespace: str = field(
        default=DEFAULT_NAMESPACE, metadata=option("The namespace of the operator, whose Lease says who leads.")
    )
    address: str = field(
        default="127.0.0.1",
        metadata=option("The address to listen on; 0.0.0.0 lets other machines in: then with --authenticate."),
    )
    port: int = field(default=8090, metadata=option("The port to listen on.", minimum=1, maximum=65535))
    allowed_host: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "A name to reach the page by; may be repeated. Default: any, but on 127.0.0.1 this machine's own alone."
        ),
    )
    authenticate: bool = field(
        default=False,
        metadata=option(
            "Ask everybody for a Kubernetes bearer token, and show what its account may list: caps and nodes, jobs."
        ),
    )
    row_label: str = field(
        default="", metadata=option("A label of the nodes to group them by, such as topology.kubernetes.io/zone.")
    )
    history_seconds: float = field(
        default=6 * 3600.0,
        metadata=option("How far back the power of each cap is kept, in memory.", minimum=60, maximum=7 * 86400),
    )
    max_connections: int = field(
        default=256, metadata=option("More connections at once are answered with 503.", minimum=1, unit="count")
    )
    max_requests_per_second: float = field(
        default=400.0, metadata=option("More requests are answered with 429.", minimum=1, unit="count")
    )

    def __post_init__(self) -> None:
        if not self.address:
            raise ValueError("the address to listen on is empty; 127.0.0.1 serves this machine alone")

    @property
    def open_to_anybody(self) -> bool:
        """Whether other machines can read the page without authentication."""
        return self.address not in LOOPBACK_ADDRESSES and not self.authenticate

    @property
    def hosts(self) -> frozenset[str]:
        """The names that requests may have; empty: any."""
        own = LOOPBACK_NAMES if self.address in LOOPBACK_ADDRESSES else frozenset[str]()
        return own | frozenset(name.lower() for name in self.allowed_host)
