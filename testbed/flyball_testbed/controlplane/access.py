"""How users reach a control plane: clients, kubeconfigs and tokens of the administrator and of service accounts."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from pathlib import Path

from flyball_testbed.controlplane.api import ApiClient
from flyball_testbed.controlplane.components import Layout
from flyball_testbed.controlplane.credentials import ADMIN, USERS, request_token, write_kubeconfig

TOKEN_SECONDS = 7 * 24 * 3600


class Access(ABC):
    """Access to the API server whose keys are in `layout`. Methods may be called from any thread."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._lock = threading.RLock()
        self._api: ApiClient | None = None

    @property
    @abstractmethod
    def server_url(self) -> str:
        """Where the API server listens."""

    @property
    def api(self) -> ApiClient:
        """The API as the cluster's administrator."""
        with self._lock:
            if self._api is None:
                self._api = ApiClient(
                    self.server_url,
                    authority_file=self.layout.authority,
                    certificate_file=self.layout.certificate(ADMIN),
                    key_file=self.layout.key(ADMIN),
                )
            return self._api

    def api_with_token(self, token: str, *, timeout_seconds: float = 30.0) -> ApiClient:
        """The API as the bearer of a token."""
        return ApiClient(
            self.server_url, authority_file=self.layout.authority, token=token, timeout_seconds=timeout_seconds
        )

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """The kubeconfig of the administrator or of a component."""
        if user not in USERS:
            raise KeyError(f"no user {user!r}; there are {', '.join(USERS)}; others are service accounts")
        return self.layout.kubeconfig(user)

    def token(self, namespace: str, service_account: str, *, seconds: int = TOKEN_SECONDS) -> str:
        """A token of a service account. Raises ApiError where there is no such account."""
        return request_token(self.api, namespace, service_account, seconds=seconds)

    def token_bound_to_pod(
        self, namespace: str, service_account: str, pod: str, *, seconds: int = TOKEN_SECONDS
    ) -> str:
        """The token that a pod's container would find mounted: it carries the pod and, once bound, its node.

        Valid as long as the pod exists. Raises ApiError where pod or account do not exist.
        """
        return request_token(self.api, namespace, service_account, seconds=seconds, pod=pod)

    def service_account_kubeconfig(
        self, namespace: str, name: str, *, pod: str | None = None, path: Path | None = None
    ) -> Path:
        """A kubeconfig with a token of a service account, bound to `pod` if one is given.

        Written to `path`, by default into the cluster's folder, where a second call replaces it.
        """
        token = self.token(namespace, name) if pod is None else self.token_bound_to_pod(namespace, name, pod)
        if path is None:
            suffix = f"-{pod}" if pod is not None else ""
            path = self.layout.directory / f"{namespace}-{name}{suffix}.kubeconfig"
        write_kubeconfig(self.layout, self.server_url, path, name, {"token": token}, namespace)
        return path

    def close_api(self) -> None:
        """Close the administrator's connections; the next use of `api` opens new ones."""
        with self._lock:
            if self._api is not None:
                self._api.close()
                self._api = None
