"""Kopf connects where our own sessions connect: by address, with our trust, and without end."""

from __future__ import annotations

import datetime
import itertools
import ssl
from pathlib import Path
from typing import Any

import kopf
import pytest
import trustme
from flyball_kube import credentials
from flyball_operator import main
from flyball_operator.process.kopf_login import LAST_PAUSE_SECONDS, EndlessPauses, connection
from flyball_operator.settings import Settings


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pod's service account and environment, as the kubelet provides them."""
    authority = trustme.CA()
    (tmp_path / "token").write_text("a-service-accounts-token")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT_FOLDER", tmp_path)
    return tmp_path


async def test_in_a_pod_kopf_connects_by_address_not_by_name(pod: Path) -> None:
    """The cluster's DNS may fail; the address stands in every pod's environment."""
    found = await connection(None)
    assert found.server == "https://10.96.0.1:443"
    assert found.as_http_headers() == {"Authorization": "Bearer a-service-accounts-token"}
    assert found.as_ssl_context().get_ca_certs() != []


async def test_a_kubeconfig_counts_for_kopf_inside_a_pod_too(pod: Path) -> None:
    kubeconfig = pod / "kubeconfig"
    kubeconfig.write_text(
        """
        {"apiVersion": "v1", "kind": "Config", "current-context": "c",
         "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
         "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:8001"}}],
         "users": [{"name": "u", "user": {"token": "anothers"}}]}
        """
    )
    found = await connection(kubeconfig)
    assert found.server == "http://127.0.0.1:8001"
    assert found.as_http_headers() == {"Authorization": "Bearer anothers"}


def test_kopfs_attempts_never_end() -> None:
    pauses = list(itertools.islice(EndlessPauses(), 1000))
    assert pauses[0] < pauses[1] < pauses[-1] == LAST_PAUSE_SECONDS


def test_the_process_starts_without_a_user_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """An arbitrary user id has no name, and kopf would end over asking for one."""
    started: dict[str, Any] = {}
    monkeypatch.setattr(kopf, "run", lambda **keywords: started.update(keywords))
    main.run(Settings())
    assert started["identity"]


async def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """A handshake over memory; raises ssl.SSLError where the client does not trust the server."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue


def _old_authority(folder: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """A certificate authority without key usage, as old clusters have, and a server that it vouches for as `name`."""
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubernetes")])

    def certificate(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
        )

    authority = (
        certificate(issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    server = (
        certificate(x509.Name([]), server_key)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(name))]), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(authority.public_bytes(pem))
    (folder / "server.pem").write_bytes(
        server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + server.public_bytes(pem)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return folder / "ca.crt", context


@pytest.mark.parametrize(("vouched_for", "trusted"), [("127.0.0.1", True), ("127.0.0.2", False)])
async def test_an_old_authority_is_trusted_and_a_wrong_name_is_not(
    tmp_path: Path, vouched_for: str, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = ssl.create_default_context

    def as_python_313(**keywords: Any) -> ssl.SSLContext:
        context = strict(**keywords)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", as_python_313)
    authority, server = _old_authority(tmp_path, vouched_for)
    ours = credentials.ssl_context(credentials.Configuration("https://127.0.0.1", authority=authority.read_text()))
    assert isinstance(ours, ssl.SSLContext)
    if trusted:
        await _shake_hands(server, ours)
        with pytest.raises(ssl.SSLError, match="certificate verify failed"):
            await _shake_hands(server, as_python_313(cafile=authority))
    else:
        with pytest.raises(ssl.SSLError, match="IP address mismatch"):
            await _shake_hands(server, ours)
