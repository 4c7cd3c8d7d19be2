"""Who may speak to one devcluster: certificates of the administrator and the components, tokens, kubeconfigs."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import trustme
import yaml
from flyball_kube.errors import ApiError

from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.components import CONTROLLER_MANAGER, KWOK, SCHEDULER, SERVICE_ADDRESS, Layout
from flyball_testbed.controlplane.ports import LOOPBACK

ADMIN = "admin"
# user -> (common name, organization): who each client certificate is
USERS = {
    ADMIN: ("devcluster-admin", "system:masters"),
    CONTROLLER_MANAGER: ("system:kube-controller-manager", None),
    SCHEDULER: ("system:kube-scheduler", None),
    KWOK: ("devcluster-kwok", "system:masters"),
}
SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def create_keys(layout: Layout, addresses: Sequence[str] = ()) -> None:
    """Make the cluster's certificate authority and write every certificate and key into its folder.

    `addresses` are those of the API server besides loopback. Kubernetes reads a client certificate's common name as the
    user and its organization as the group.
    """
    authority = trustme.CA()
    certificates = {"serving": authority.issue_cert(LOOPBACK, SERVICE_ADDRESS, *addresses, *SERVER_NAMES)}
    for user, (common_name, organization) in USERS.items():
        # The list of names, critical in these certificates, must not be empty; a client's is never looked at.
        certificates[user] = authority.issue_cert("localhost", common_name=common_name, organization_name=organization)
    layout.pki.mkdir()
    layout.authority.write_bytes(authority.cert_pem.bytes())
    write_private(layout.authority_key, authority.private_key_pem.bytes())
    for user, certificate in certificates.items():
        _write_certificate(layout, user, certificate)
    # An elliptic-curve key in the SEC 1 form, the only one of which the API server also reads the public half.
    write_private(layout.pki / "service-account.key", trustme.CA().private_key_pem.bytes())


def issue(layout: Layout, user: str, common_name: str, organization: str | None, *names: str) -> None:
    """Make one more certificate, of a client and of a server under `names`, and write it and its key as `user`'s."""
    authority = trustme.CA.from_pem(layout.authority.read_bytes(), layout.authority_key.read_bytes())
    certificate = authority.issue_cert(*names, common_name=common_name, organization_name=organization)
    _write_certificate(layout, user, certificate)


def _write_certificate(layout: Layout, user: str, certificate: trustme.LeafCert) -> None:
    layout.certificate(user).write_bytes(certificate.cert_chain_pems[0].bytes())
    write_private(layout.key(user), certificate.private_key_pem.bytes())


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, from its first byte on."""
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(content)


def write_user_kubeconfigs(layout: Layout, server_url: str) -> None:
    """Write a kubeconfig for each user with a certificate."""
    for user in USERS:
        write_certificate_kubeconfig(layout, server_url, user)


def write_certificate_kubeconfig(layout: Layout, server_url: str, user: str, path: Path | None = None) -> None:
    """Write the kubeconfig of a user who has a certificate, to `path` or where the layout has it."""
    credentials = {
        "client-certificate-data": _base64(layout.certificate(user)),
        "client-key-data": _base64(layout.key(user)),
    }
    write_kubeconfig(layout, server_url, path or layout.kubeconfig(user), user, credentials)


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

    Raises ApiError where account or pod do not exist.
    """
    spec: Json = {"expirationSeconds": seconds}
    if pod is not None:
        found = api.get_or_none(f"/api/v1/namespaces/{namespace}/pods/{pod}")
        if found is None:
            raise ApiError(404, "NotFound", f"no pod {namespace}/{pod} to bind a token to", "TokenRequest")
        uid = found["metadata"]["uid"]
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    token: str = api.create(path, body)["status"]["token"]
    return token


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
