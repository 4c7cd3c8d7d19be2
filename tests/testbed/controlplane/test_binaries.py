"""Finding, fetching and building the programs of clusters, with stand-ins for the network and the compiler."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from flyball_testbed.controlplane.programs import binaries, build, download
from flyball_testbed.controlplane.programs.binaries import (
    NODE_PROGRAMS,
    PROGRAMS,
    BinariesUnavailableError,
    find_binaries,
)
from flyball_testbed.controlplane.programs.chart_tools import (
    built_chart_tools,
    chart_tools_directory,
    find_chart_tools,
)
from flyball_testbed.controlplane.programs.integrations import INTEGRATIONS, find_integration, integration_directory
from flyball_testbed.controlplane.programs.monitoring_tools import find_monitoring_tools

from tests.support.waiting import wait_until

VERSIONS = {
    "etcd": "etcd Version: 3.6.8",
    "kube-apiserver": "Kubernetes v1.36.3",
    "kube-controller-manager": "Kubernetes v1.36.3",
    "kube-scheduler": "Kubernetes v1.36.3",
    "kubectl": "Client Version: v1.36.3",
    "kwok": "kwok version v0.8.0 go1.26.8 (linux/amd64)",
}
# A Go that "builds" a program by writing where it was asked to, and keeps a record of what it was asked for; not before
# there is the file that GO_WAITS_FOR names.
FAKE_GO = """#!/bin/sh
if [ "$1" = env ]; then echo go1.26.8; exit; fi
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
echo "$1" >> "$GO_RECORD"
while [ -n "$GO_WAITS_FOR" ] && [ ! -e "$GO_WAITS_FOR" ]; do sleep 0.05; done
[ "$1" = "$GO_FAILS_ON" ] && { echo "$1: does not compile"; exit 1; }
printf '#!/bin/sh\\n' > "$out" && chmod +x "$out"
"""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on it but a Go compiler of the right age: an empty cache and no way to the releases."""
    write_program(tmp_path / "path" / "go", FAKE_GO)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin:/usr/bin")
    monkeypatch.setattr(
        binaries.shutil,
        "which",
        lambda name: str(tmp_path / "path" / name) if (tmp_path / "path" / name).exists() else None,
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("GO_RECORD", str(tmp_path / "record"))
    monkeypatch.setenv("GO_FAILS_ON", "")
    monkeypatch.setenv("GO_WAITS_FOR", "")
    monkeypatch.setattr(download, "OFFICIAL_RELEASES", "http://127.0.0.1:9/release")  # nobody listens there
    return tmp_path


def built(machine: Path) -> list[str]:
    record = machine / "record"
    return record.read_text().split() if record.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("programs", [PROGRAMS, NODE_PROGRAMS], ids=["control plane", "nodes"])
def test_what_cannot_be_fetched_is_built_once_and_then_cached(machine: Path, programs: tuple[str, ...]) -> None:
    lines: list[str] = []
    found = find_binaries(lines.append, programs)
    assert set(found.paths) == set(programs)
    assert all(path.parent == machine / "cache/flyball/v1.36.3/bin" for path in found.paths.values())
    assert all(os.access(path, os.X_OK) for path in found.paths.values())
    assert sorted(built(machine)) == sorted(build.PACKAGE_OF_PROGRAM[program] for program in programs)
    assert sum(line.startswith("official release: ") for line in lines) == 1, "one line for the step that failed"

    again: list[str] = []
    assert find_binaries(again.append, programs) == found
    assert again == []
    assert len(built(machine)) == len(programs)


@pytest.mark.slow
def test_two_processes_never_build_at_once(machine: Path) -> None:
    program = (
        "from flyball_testbed.controlplane.programs import binaries, download\n"
        "download.OFFICIAL_RELEASES = 'http://127.0.0.1:9/release'\n"
        f"binaries.shutil.which = {{'go': {str(machine / 'path' / 'go')!r}}}.get\n"
        "binaries.find_binaries()\n"
    )
    environment = {**os.environ, "GO_WAITS_FOR": str(machine / "both are there"), "PYTHONUNBUFFERED": "1"}
    logs = [machine / f"said-{number}" for number in range(2)]
    both = []
    for log in logs:
        with log.open("w") as said:
            both.append(subprocess.Popen([sys.executable, "-c", program], stdout=said, env=environment))

    def waiting() -> int:
        return sum("waiting for another process" in log.read_text() for log in logs)

    try:
        wait_until(lambda: waiting() > 0, "one waits for the other")
        (machine / "both are there").touch()
        assert [process.wait(120) for process in both] == [0, 0]
    finally:
        for process in both:
            process.kill()
            process.wait()
    assert len(built(machine)) == len(PROGRAMS), "the second found what the first had built"
    assert waiting() == 1


def test_a_build_that_fails_leaves_nothing_half_done(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GO_FAILS_ON", "k8s.io/kubernetes/cmd/kube-scheduler")
    with pytest.raises(BinariesUnavailableError) as failure:
        find_binaries(lambda _line: None)
    message = str(failure.value)
    assert "official release: http://127.0.0.1:9" in message
    assert "kube-scheduler: does not compile" in message
    left = {path.name for path in (machine / "cache/flyball/v1.36.3/bin").iterdir()}
    assert "kube-scheduler" not in left
    assert left <= set(PROGRAMS), "no scratch folder stays"


@pytest.mark.slow
def test_a_killed_builds_scratch_is_cleared_away(machine: Path) -> None:
    scratch = machine / "cache/flyball/v1.36.3/bin" / f"{build.SCRATCH_PREFIX}old"
    scratch.mkdir(parents=True)
    (scratch / "etcd").write_text("half")
    find_binaries(lambda _line: None)
    assert not scratch.exists()


def test_the_named_assets_are_taken_if_their_versions_fit(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program, version in VERSIONS.items():
        write_program(machine / "assets" / program, f"#!/bin/sh\necho '{version}'\n")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(machine / "assets"))
    found = find_binaries(lambda _line: None)
    assert all(path.parent == machine / "assets" for path in found.paths.values())
    assert built(machine) == []


def test_a_program_of_another_version_is_passed_over_by_name(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program, version in VERSIONS.items():
        write_program(machine / "assets" / program, f"#!/bin/sh\necho '{version}'\n")
    write_program(machine / "assets" / "kube-apiserver", "#!/bin/sh\necho 'Kubernetes v1.29.4'\n")
    write_program(machine / "assets" / "etcd", "#!/bin/sh\necho 'etcd Version: 3.7.1'\n")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(machine / "assets"))
    lines: list[str] = []
    found = find_binaries(lines.append)
    assert built(machine) == ["k8s.io/kubernetes/cmd/kube-apiserver"]
    assert any("kube-apiserver is 1.29.4, not 1.36" in line for line in lines)
    assert found["etcd"] == machine / "assets" / "etcd", "a later etcd will do"


def test_the_path_is_asked_for_what_the_cache_lacks(machine: Path) -> None:
    write_program(machine / "path" / "kwok", f"#!/bin/sh\necho '{VERSIONS['kwok']}'\n")
    found = find_binaries(lambda _line: None)
    assert found["kwok"] == machine / "path" / "kwok"
    assert build.PACKAGE_OF_PROGRAM["kwok"] not in built(machine)


def test_a_program_that_tells_no_version_is_not_trusted(tmp_path: Path) -> None:
    write_program(tmp_path / "etcd", "#!/bin/sh\nexit 1\n")
    assert "does not say its version" in (binaries.incompatibility("etcd", tmp_path / "etcd") or "")


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A stand-in for the official releases, over HTTP from a folder."""
    folder = tmp_path / "releases"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(download, "OFFICIAL_RELEASES", f"http://127.0.0.1:{server.server_address[1]}")
        yield folder
        server.shutdown()


def publish(releases: Path, program: str, content: bytes, checksum: str | None = None) -> None:
    path = releases / "v1.36.3" / "bin" / "linux" / download.ARCHITECTURES[os.uname().machine] / program
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    Path(f"{path}.sha256").write_text(checksum or hashlib.sha256(content).hexdigest())


def test_a_release_with_its_published_checksum_is_taken(releases: Path, tmp_path: Path) -> None:
    publish(releases, "kubectl", b"the program")
    download.fetch_kubernetes(["kubectl"], "v1.36.3", tmp_path, lambda _line: None)
    assert (tmp_path / "kubectl").read_bytes() == b"the program"
    assert os.access(tmp_path / "kubectl", os.X_OK)


def test_a_release_with_another_checksum_is_refused(releases: Path, tmp_path: Path) -> None:
    publish(releases, "kubectl", b"tampered", hashlib.sha256(b"the program").hexdigest())
    target = tmp_path / "bin"
    target.mkdir()
    with pytest.raises(download.DownloadError, match="published is"):
        download.fetch_kubernetes(["kubectl"], "v1.36.3", target, lambda _line: None)
    assert list(target.iterdir()) == []


def test_a_missing_release_is_named(releases: Path, tmp_path: Path) -> None:
    with pytest.raises(download.DownloadError, match=r"v1\.36\.3.*kubectl.*not found"):
        download.fetch_kubernetes(["kubectl"], "v1.36.3", tmp_path, lambda _line: None)


def test_fetched_programs_are_not_built(machine: Path, releases: Path) -> None:
    for program in sorted(binaries.KUBERNETES_PROGRAMS):
        publish(releases, program, b"#!/bin/sh\n")
    find_binaries(lambda _line: None, [*PROGRAMS, "kubelet", "ctr"])
    assert sorted(built(machine)) == sorted(build.PACKAGE_OF_PROGRAM[program] for program in ("etcd", "kwok", "ctr"))


def test_an_old_go_gives_way_to_the_wheels(machine: Path) -> None:
    write_program(machine / "path" / "go", "#!/bin/sh\necho go1.19.8\n")
    wheel = machine / "tools" / "go-1.26" / "lib" / "python3.11" / "site-packages" / "go" / "bin" / "go"
    write_program(wheel, FAKE_GO)
    lines: list[str] = []
    assert build.find_go(machine / "tools", lines.append) == wheel
    assert lines == ["the machine's Go is 1.19.8, 1.26.6 is needed"]


def test_every_program_has_a_pinned_version() -> None:
    for program in (*PROGRAMS, *NODE_PROGRAMS):
        assert build.pinned_version(build.MODULE_OF_PROGRAM[program]).startswith("v")
    with pytest.raises(build.BuildError, match=r"requires example\.com/none"):
        build.pinned_version("example.com/none")


def test_the_api_server_will_report_the_pinned_version() -> None:
    assert "version.gitVersion=v1.36.3" in build.linker_flags("kube-apiserver")
    assert "gitVersion" not in build.linker_flags("etcd")


def test_the_charts_tools_are_built_once_and_apart_from_the_control_plane(machine: Path) -> None:
    assert built_chart_tools() is None
    lines: list[str] = []
    found = find_chart_tools(lines.append)
    assert set(found.paths) == {"helm", "helm-docs", "kubeconform"}
    assert all(os.access(path, os.X_OK) for path in found.paths.values())
    assert sorted(built(machine)) == sorted(build.PACKAGE_OF_CHART_TOOL.values())
    again = built_chart_tools()
    assert again is not None
    assert again.paths == find_chart_tools(lines.append).paths == found.paths
    assert len(built(machine)) == 3


def test_other_pins_are_other_tools(machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = chart_tools_directory()
    pins = (build.CHART_TOOLS_DIRECTORY / "go.mod").read_text()
    (tmp_path / "go.mod").write_text(pins.replace("helm.sh/helm/v4 v4.", "helm.sh/helm/v4 v5."))
    monkeypatch.setattr(build, "CHART_TOOLS_DIRECTORY", tmp_path)
    assert chart_tools_directory() != before


def test_other_people_s_controllers_are_built_once_and_only_when_asked_for(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_integration("jobset", lambda line: None)
    assert built(machine) == [build.PACKAGE_OF_INTEGRATION["jobset"]]
    assert find_integration("jobset", lambda line: None) == found
    assert len(built(machine)) == 1
    found.unlink()
    monkeypatch.setenv("GO_FAILS_ON", build.PACKAGE_OF_INTEGRATION["jobset"])
    with pytest.raises(BinariesUnavailableError, match=r"(?s)no jobset: .*does not compile"):
        find_integration("jobset", lambda line: None)
    # Each has pins of its own: a new version of one builds only that.
    assert len({integration_directory(program) for program in INTEGRATIONS}) == len(INTEGRATIONS)


@pytest.mark.parametrize("program", build.PACKAGES)
def test_every_program_s_module_is_pinned_with_its_checksums(program: str) -> None:
    module = build.MODULE_OF_PROGRAM[program]
    version = build.pinned_version(module)
    sums = (build.DIRECTORY_OF_MODULE[module] / "go.sum").read_text()
    pins = (build.DIRECTORY_OF_MODULE[module] / "go.mod").read_text()
    replaced = re.search(rf"^replace {re.escape(module)} => (\S+ v\S+)$", pins, re.MULTILINE)
    assert f"{replaced[1] if replaced else f'{module} {version}'} h1:" in sums
    assert f'_ "{build.PACKAGES[program]}"' in (build.DIRECTORY_OF_MODULE[module] / "tools.go").read_text()


# --- Prometheus and promtool ---------------------------------------------------------------------------------------

FAKE_APT = """#!/bin/sh
echo fetched >> "$APT_RECORD"
[ "$APT_FAILS" ] && { echo "E: Unable to locate package" >&2; exit 100; }
touch prometheus_2.deb
"""
FAKE_DPKG = """#!/bin/sh
mkdir -p "$3/usr/bin"
for tool in $APT_TOOLS; do
  printf '#!/bin/sh\\necho "%s, version 2.42.0"\\n' "$tool" > "$3/usr/bin/$tool" && chmod +x "$3/usr/bin/$tool"
done
"""


@pytest.fixture
def debian(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with apt-get besides."""
    write_program(machine / "path" / "apt-get", FAKE_APT)
    write_program(machine / "path" / "dpkg-deb", FAKE_DPKG)
    monkeypatch.setenv("APT_RECORD", str(machine / "fetched"))
    monkeypatch.setenv("APT_FAILS", "")
    monkeypatch.setenv("APT_TOOLS", "prometheus promtool")
    return machine


def test_prometheus_is_fetched_once_where_debian_has_it(debian: Path) -> None:
    lines: list[str] = []
    found = find_monitoring_tools(lines.append)
    assert [line.partition(",")[0] for line in lines] == ["fetching Debian's package prometheus"]
    assert all(os.access(path, os.X_OK) for path in found.paths.values())
    assert find_monitoring_tools(lines.append).paths == found.paths
    assert len(lines) == 1
    assert (debian / "fetched").read_text() == "fetched\n"
    assert built(debian) == []


@pytest.mark.parametrize(
    ("variable", "value", "reason"), [("APT_FAILS", "1", "Unable to locate"), ("APT_TOOLS", "prometheus", "promtool")]
)
def test_prometheus_is_built_where_debian_s_cannot_be_had(
    debian: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(variable, value)
    lines: list[str] = []
    found = find_monitoring_tools(lines.append)
    assert any(reason in line for line in lines)
    assert sorted(built(debian)) == sorted(build.PACKAGE_OF_MONITORING_TOOL.values())
    assert find_monitoring_tools(lines.append).paths == found.paths
    monkeypatch.setenv("GO_FAILS_ON", build.PACKAGE_OF_MONITORING_TOOL["promtool"])
    found.paths["promtool"].unlink()
    with pytest.raises(BinariesUnavailableError, match=f"(?s){reason}.*does not compile"):
        find_monitoring_tools(lines.append)


@pytest.mark.parametrize(("version", "taken"), [("3.5.0", True), ("2.42.1", True), ("2.41.9", False), ("", False)])
def test_the_machine_s_own_prometheus_is_taken_unless_it_is_too_old(debian: Path, version: str, taken: bool) -> None:
    for tool in ("prometheus", "promtool"):
        write_program(debian / "path" / tool, f'#!/bin/sh\necho "{tool}, version {version} (branch: HEAD)"\n')
    found = find_monitoring_tools(lambda line: None)
    assert (found["promtool"] == debian / "path" / "promtool") is taken
    assert (debian / "fetched").exists() is not taken
