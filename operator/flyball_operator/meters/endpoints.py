"""Which servers the operator asks for meters' readings: its own configuration, never a PowerCap's.

A PowerCap names an endpoint and says what to ask there; addresses, credentials and trust are files of the operator's. So
who may write a PowerCap can send the operator nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import yaml
from flyball_kube.yaml_errors import yaml_problem
from msgspec import Meta, Struct, ValidationError, convert

MAX_FILE_BYTES = 256 * 1024
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Endpoint(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One Prometheus (or what speaks its API): its address, and the files of its CA and of a bearer token, if any."""

    name: str
    url: str
    ca_file: str | None = None
    token_file: str | None = None
    timeout_seconds: Annotated[float, Meta(gt=0.0, le=30.0)] = 2.0

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"endpoint {self.name!r}: a name has lower-case letters, digits and dashes, 63 at most")
        url = urlsplit(self.url)
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
            raise ValueError(f"endpoint {self.name}: {self.url!r} is no http(s)://host[:port][/path]")
        if url.username is not None or url.password is not None:
            raise ValueError(f"endpoint {self.name}: credentials belong into tokenFile, not into the url")
        if self.token_file is not None and url.scheme != "https":
            raise ValueError(f"endpoint {self.name}: a token is sent over https only")


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    endpoints: Annotated[tuple[Endpoint, ...], Meta(max_length=64)]


def read_endpoints(path: Path) -> Mapping[str, Endpoint]:
    """The endpoints of a YAML file (`endpoints: [{name, url, caFile, tokenFile, timeoutSeconds}]`), by name.

    Raises OSError where it cannot be read, and ValueError that names the file and what is wrong in it.
    """
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"meter endpoints {path}: longer than {MAX_FILE_BYTES} bytes")
    try:
        found = convert(yaml.safe_load(content), _File).endpoints
    except yaml.YAMLError as error:
        raise ValueError(f"meter endpoints {path}: no YAML: {yaml_problem(error)}") from error
    except ValidationError as error:
        raise ValueError(f"meter endpoints {path}: {error} (wanted endpoints: [{{name: NAME, url: URL}}])") from error
    by_name = {endpoint.name: endpoint for endpoint in found}
    if len(by_name) < len(found):
        raise ValueError(f"meter endpoints {path}: two endpoints have one name")
    return by_name
