"""Print the software bill of materials of an image, as CycloneDX 1.6: the Python packages and Debian's.

    python bill_of_materials.py NAME SITE-PACKAGES ROOT

SITE-PACKAGES is the folder of the installed Python packages, ROOT the root file system with `var/lib/dpkg/status.d`, one
control file a package. It is what is installed that is listed, not what was asked for. Equal contents give equal bytes.
"""

from __future__ import annotations

import json
import sys
import uuid
from email.parser import HeaderParser
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://flyball.dev/bill-of-materials")


def python_components(site_packages: Path) -> list[dict[str, Any]]:
    """One component for each installed Python distribution."""
    found = []
    for distribution in distributions(path=[str(site_packages)]):
        metadata = distribution.metadata
        name, version = metadata["Name"], distribution.version
        purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
        component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        expression = metadata.get("License-Expression")
        if expression:
            component["licenses"] = [{"expression": expression}]
        found.append(component)
    return found


def debian_components(root: Path) -> list[dict[str, Any]]:
    """One component for each unpacked Debian package."""
    found = []
    for file in (root / "var/lib/dpkg/status.d").iterdir():
        control = HeaderParser().parsestr(file.read_text())
        name, version, architecture = control["Package"], control["Version"], control["Architecture"]
        purl = f"pkg:deb/debian/{name}@{version}?arch={architecture}".replace("+", "%2B")
        found.append({"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl})
    return found


def bill_of_materials(name: str, site_packages: Path, root: Path) -> dict[str, Any]:
    """The whole document; its serial number follows from its contents, so that it is reproducible."""
    components = sorted(python_components(site_packages) + debian_components(root), key=lambda each: each["bom-ref"])
    version = next(each["version"] for each in components if each["name"] == "flyball")
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, name + json.dumps(components, sort_keys=True))}",
        "version": 1,
        "metadata": {"component": {"type": "container", "bom-ref": name, "name": name, "version": version}},
        "components": components,
    }


if __name__ == "__main__":
    print(json.dumps(bill_of_materials(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])), indent=1))
