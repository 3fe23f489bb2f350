"""The deployment files by the rules of their own kind: YAML, Dockerfile, kustomize, Kubernetes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from yamllint import linter
from yamllint.config import YamlLintConfig

from compose.requirements import requirements
from tests.deploy.manifests import KUBERNETES, ROOT, kubernetes_resources, load, pods

YAML_FILES = [
    ROOT / "compose.yaml",
    *sorted((ROOT / "compose").rglob("*.y*ml")),
    *sorted((ROOT / "deploy").rglob("*.y*ml")),
]
BASE = kubernetes_resources("base")


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_yaml(path):
    config = YamlLintConfig(file=str(ROOT / ".yamllint.yaml"))
    assert not list(linter.run(path.read_text(), config))


def test_dockerfile():
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, ROOT / "compose" / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_dockerfile_needs_no_buildkit():
    text = (ROOT / "compose" / "Dockerfile").read_text()
    assert "--mount" not in text
    assert "<<" not in text
    assert "# syntax" not in text


def test_the_image_gets_the_dependencies_of_the_extras():
    (command,) = re.findall(r"requirements\.py (.*) >", (ROOT / "compose/Dockerfile").read_text())
    lines = requirements(ROOT / "pyproject.toml", command.split())
    for package in ("torch", "grpcio", "tokenizers", "llguidance", "cryptography"):
        assert any(line.startswith(f"{package}>=") for line in lines)
    with pytest.raises(KeyError):
        requirements(ROOT / "pyproject.toml", ["no-such-extra"])


@pytest.mark.parametrize("folder", ["base", "overlays/gpu", "components/cert-manager"])
def test_a_kustomization_lists_exactly_its_files(folder):
    (kustomization,) = load(KUBERNETES / folder / "kustomization.yaml")
    listed = kustomization["resources"]
    assert all((KUBERNETES / folder / name).exists() for name in listed)
    there = {path.name for path in (KUBERNETES / folder).glob("*.yaml")}
    assert there - {"kustomization.yaml"} == {name for name in listed if "/" not in name}


@pytest.mark.parametrize(
    "resource", BASE, ids=lambda resource: f"{resource['kind']}-{resource['metadata']['name']}"
)
def test_every_resource_fits_its_schema(resource):
    kubernetes_validate.validate(resource, "1.37", strict=True)


def test_the_gpu_overlay_fits_its_schema_and_patches_the_workers():
    (kustomization,) = load(KUBERNETES / "overlays" / "gpu" / "kustomization.yaml")
    (patch,) = kustomization["patches"]
    label, _, value = patch["target"]["labelSelector"].partition("=")
    chosen = [
        resource
        for resource in BASE
        if resource["kind"] == patch["target"]["kind"]
        and resource["metadata"].get("labels", {}).get(label) == value
    ]
    assert [resource["metadata"]["name"] for resource in chosen] == ["target", "draft"]
    for resource in chosen:
        patched = json.loads(json.dumps(resource))
        for step in yaml.safe_load(patch["patch"]):
            _add(patched, step)
        kubernetes_validate.validate(patched, "1.37", strict=True)
        (container,) = patched["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
        assert container["env"][-1] == {"name": "EXSPEC_DEVICE", "value": "cuda"}


def _add(resource, step):
    """One "add" of RFC 6902."""
    assert step["op"] == "add"
    *parents, last = [part.replace("~1", "/") for part in step["path"].split("/")[1:]]
    for part in parents:
        resource = resource[int(part)] if isinstance(resource, list) else resource[part]
    if isinstance(resource, list):
        assert last == "-"
        resource.append(step["value"])
    else:
        resource[last] = step["value"]


@pytest.mark.parametrize(("name", "pod"), pods(BASE).items(), ids=lambda value: str(value)[:12])
def test_pods_run_with_few_rights(name, pod):
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    # A Service named exspec would set EXSPEC_PORT to an address otherwise.
    assert pod["enableServiceLinks"] is False
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}


def test_every_deployment_has_its_budget_and_workers_scale_with_the_queue():
    def named(kind):
        return {r["metadata"]["name"]: r["spec"] for r in BASE if r["kind"] == kind}

    assert set(named("PodDisruptionBudget")) == set(named("Deployment"))
    scalers = named("HorizontalPodAutoscaler")
    assert set(scalers) == {"target", "draft"}
    for name, scaler in scalers.items():
        assert scaler["scaleTargetRef"]["name"] == name
        (metric,) = scaler["metrics"]
        assert metric["external"]["metric"]["name"] == "exspec_requests_waiting"
        assert "replicas" not in named("Deployment")[name]


def test_services_and_policies_name_ports_and_pods_that_there_are():
    containers = {name: pod["containers"][0] for name, pod in pods(BASE).items()}
    ports = {port["name"] for container in containers.values() for port in container["ports"]}
    for resource in BASE:
        if resource["kind"] == "Service":
            assert {port["targetPort"] for port in resource["spec"]["ports"]} <= ports
        if resource["kind"] == "NetworkPolicy":
            rules = resource["spec"].get("ingress", [])
            assert {port["port"] for rule in rules for port in rule["ports"]} <= ports
    addresses = {
        f"{resource['metadata']['name']}:{port['port']}"
        for resource in BASE
        if resource["kind"] == "Service"
        for port in resource["spec"]["ports"]
    }
    for role in ("target", "draft"):
        environment = {entry["name"]: entry.get("value") for entry in containers[role]["env"]}
        assert environment["EXSPEC_COORDINATOR"] in addresses


def test_the_port_of_a_worker_is_open_to_the_coordinator_alone():
    (policy,) = [
        r for r in BASE if r["kind"] == "NetworkPolicy" and r["metadata"]["name"] == "workers"
    ]
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"] == [
        {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "coordinator"}}}
    ]
    (closed,) = [
        r for r in BASE if r["kind"] == "NetworkPolicy" and r["metadata"]["name"] == "closed"
    ]
    assert closed["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
