"""Who may speak to one devcluster: certificates of the administrator and the components, tokens, kubeconfigs."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from flyball_devcluster.api import ApiClient, Json, NotFoundError
from flyball_devcluster.components import CONTROLLER_MANAGER, KWOK, SCHEDULER, SERVICE_ADDRESS, Layout
from flyball_devcluster.pki import CertificateAuthority, signing_key_pem, write_private
from flyball_devcluster.ports import LOOPBACK

ADMIN = "admin"
# user -> (common name, organization): who each client certificate is
USERS = {
    ADMIN: ("devcluster-admin", "system:masters"),
    CONTROLLER_MANAGER: ("system:kube-controller-manager", None),
    SCHEDULER: ("system:kube-scheduler", None),
    KWOK: ("devcluster-kwok", "system:masters"),
}
SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def create_keys(layout: Layout) -> None:
    """Make the cluster's authority and write every certificate and key into its folder."""
    authority = CertificateAuthority()
    layout.pki.mkdir()
    layout.authority.write_bytes(authority.certificate_pem)
    write_private(layout.pki / "service-account.key", signing_key_pem())
    server = authority.issue("devcluster", addresses=(LOOPBACK, SERVICE_ADDRESS), names=SERVER_NAMES)
    pairs = {"serving": server}
    for user, (common_name, organization) in USERS.items():
        pairs[user] = authority.issue(common_name, organization=organization)
    for user, pair in pairs.items():
        layout.certificate(user).write_bytes(pair.certificate_pem)
        write_private(layout.key(user), pair.key_pem)


def write_user_kubeconfigs(layout: Layout, server_url: str) -> None:
    """Write a kubeconfig for each user with a certificate."""
    for user in USERS:
        credentials = {
            "client-certificate-data": _base64(layout.certificate(user)),
            "client-key-data": _base64(layout.key(user)),
        }
        write_kubeconfig(layout, server_url, layout.kubeconfig(user), user, credentials)


def write_kubeconfig(
    layout: Layout, server_url: str, path: Path, user: str, credentials: Json, namespace: str | None = None
) -> None:
    """Write a self-contained kubeconfig that only its owner may read."""
    context: Json = {"cluster": "devcluster", "user": user}
    if namespace is not None:
        context["namespace"] = namespace
    cluster = {"server": server_url, "certificate-authority-data": _base64(layout.authority)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "devcluster", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "devcluster", "context": context}],
        "current-context": "devcluster",
    }
    write_private(path, yaml.safe_dump(content, sort_keys=False).encode())


def request_token(api: ApiClient, namespace: str, service_account: str, *, seconds: int, pod: str | None = None) -> str:
    """A token of a service account, bound to `pod` if one is given.

    Raises NotFoundError where account or pod do not exist.
    """
    spec: Json = {"expirationSeconds": seconds}
    if pod is not None:
        found = api.get_or_none(f"/api/v1/namespaces/{namespace}/pods/{pod}")
        if found is None:
            raise NotFoundError(404, "NotFound", f"no pod {namespace}/{pod} to bind a token to", "TokenRequest")
        uid = found["metadata"]["uid"]
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    token: str = api.create(path, body)["status"]["token"]
    return token


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
