"""The files that deploy PosLens on a server: linted, and consistent with the program and each
other. tests/e2e/test_container.py and test_proxy.py run what they start."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from poslens.compute.settings import SETTINGS
from poslens.dashboard.server.access import access_of

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
KUBERNETES: list[dict[str, Any]] = list(
    yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))
)


def test_the_dockerfile_passes_the_linter() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint is not None
    asked = [hadolint, str(DEPLOY / "Dockerfile")]
    found = subprocess.run(asked, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_the_image_has_the_same_files_as_the_wheel() -> None:
    """Each copied file exists and is allowed into the build."""
    let_through = {
        line.removeprefix("!")
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        name
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for name in line.split()[:-1]
    }
    assert copied == let_through and all(any(ROOT.glob(name)) for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    needed = {project["project"]["readme"], *project["project"]["license-files"], *wheel}
    assert needed <= copied


def test_the_image_has_the_packages_for_login() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {r.name: r for r in map(Requirement, project["optional-dependencies"]["server"])}
    lines = (DEPLOY / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    assert set(pins) == set(asked)
    assert all(pins[name] in one.specifier for name, one in asked.items())
    assert pins.items() <= locked("deploy/requirements.lock").items()


def test_images_are_pinned_by_digest() -> None:
    first, *others = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    for image in (first, COMPOSE["services"]["proxy"]["image"]):
        assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", image), image
    assert set(others) == {"base"}


def test_the_image_installs_nothing_without_its_hash() -> None:
    """A CUDA build of torch is the exception: its hash depends on the build."""
    pinned = next(
        line
        for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
        if line.startswith("torch==")
    )
    assert locked("deploy/torch-cpu.txt") == dict([pinned.split("==")])
    python = re.search(r"python:(\d+)\.(\d+)\.", DOCKERFILE)
    assert python and python.groups() == ("3", "11"), "torch-cpu.txt has hashes for Python 3.11"
    installs = re.findall(r"pip install ([^;&\n\\]*)", DOCKERFILE)
    unchecked = [options.strip() for options in installs if "--require-hashes" not in options]
    # The fallback of another torch build, and PosLens itself.
    assert unchecked == [
        """--index-url "$index" "$(grep '^torch==' requirements.txt)\"""",
        "--no-deps .",
    ]


def test_compose_sets_every_variable_of_the_proxys_template() -> None:
    proxy = COMPOSE["services"]["proxy"]
    template = (DEPLOY / "nginx.conf.template").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{(\w+)\}", template)) == set(proxy["environment"])
    app = COMPOSE["services"]["poslens"]
    assert proxy["environment"]["POSLENS_BASE_PATH"] == app["environment"]["BASE_PATH"]
    name, secret = proxy["environment"]["PROXY_PASSWORDS"].rsplit("/", 1)
    assert name == "/run/secrets" and secret in COMPOSE["secrets"]
    assert "poslens" not in COMPOSE["services"]["poslens"].get("ports", []), "the proxy alone"
    # The trusted proxy is the configured one, and no other container gets its address: those of
    # PosLens, as many as `--scale` sets, get theirs from the range.
    (network,) = COMPOSE["networks"]["inside"]["ipam"]["config"]
    at = ip_address(proxy["networks"]["inside"]["ipv4_address"])
    assert at in ip_network(network["subnet"]) and at not in ip_network(network["ip_range"])
    assert app["networks"] == ["inside"]
    options = app["command"]
    assert options[options.index("--trusted-proxy") + 1] == str(at)
    for service in (app, proxy):
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"]


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_the_program_accepts_the_options_of_the_deployment(where: str) -> None:
    if where == "compose":
        given = COMPOSE["services"]["poslens"]["command"]
    else:
        (given,) = (c["args"] for c in pods()["containers"])
    options = dict(zip(given[::2], given[1::2], strict=True)) if "--login" not in given else {}
    if options:
        access_of("0.0.0.0", "tools/poslens", ["localhost"], None, [options["--trusted-proxy"]])
        assert set(options) == {"--allowed-host", "--trusted-proxy"}
    else:
        assert given[:2] == ["--login", "--allowed-host"]
        access_of("0.0.0.0", "", given[2:], True)


def test_kubernetes_runs_the_program_as_the_image_does() -> None:
    (container,) = pods()["containers"]
    assert pods()["securityContext"]["runAsUser"] == 10001 and "USER 10001:10001" in DOCKERFILE
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {one["name"] for one in container["env"]} <= {one.name for one in SETTINGS}
    mounted = {one["mountPath"] for one in container["volumeMounts"]}
    assert mounted == {"/data", "/tmp"}, "all that it writes to"


def locked(name: str) -> dict[str, str]:
    """Version of each package in a lock, each with the hashes of its files."""
    found = {}
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            pin = re.fullmatch(
                r"([\w.-]+)==([\w.+!-]+)(?: ;[^#]*?)?(?: --hash=sha256:[0-9a-f]{64})+", line
            )
            assert pin, f"no version and hash: {line[:80]}"
            found[pin[1]] = pin[2]
    return found


def pods() -> dict[str, Any]:
    (deployment,) = (one for one in KUBERNETES if one["kind"] == "Deployment")
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec
