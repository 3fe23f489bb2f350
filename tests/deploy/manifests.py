"""What the deployment files say, as plain values: services of stacks, pods of Kubernetes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from coordinator.settings import CoordinatorSettings
from draft_worker.settings import DraftSettings
from target_worker.settings import TargetSettings

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose" / "cluster.yaml"
SWARM = ROOT / "deploy" / "swarm" / "stack.yaml"
KUBERNETES = ROOT / "deploy" / "kubernetes"
SETTINGS = {
    "coordinator": CoordinatorSettings,
    "target": TargetSettings,
    "draft": DraftSettings,
}
VARIABLE = re.compile(r"\$\{(\w+)(?::?[-?]([^}]*))?\}")


@dataclass(frozen=True)
class Service:
    """One service of ours as a file runs it. `probes` are the commands of its health checks."""

    where: str
    role: str
    arguments: list[str]
    environment: dict[str, str | None]
    probes: list[list[str]]

    def __str__(self) -> str:
        return f"{self.where}-{self.role}"

    def settings(self, monkeypatch):
        """What the service reads there."""
        for name, value in self.environment.items():
            if value is not None:
                monkeypatch.setenv(name, value)
        assert self.arguments[:2] == ["serve", self.role]
        return SETTINGS[self.role](_cli_parse_args=self.arguments[2:])


def load(path: Path) -> list[dict]:
    """All documents of a file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def defaults(text: str) -> str:
    """The text with the default of every variable, as if none were set."""
    return VARIABLE.sub(lambda found: found[2] or "", text)


def stack_services(path: Path) -> list[Service]:
    """The services of a Compose or Swarm file that run a settings class."""
    (stack,) = load(path)
    return [
        _stack_service(path.stem, role, stack["services"][role])
        for role in SETTINGS
        if role in stack["services"]
    ]


def _stack_service(where: str, role: str, service: dict) -> Service:
    environment = {
        name: None if value is None else defaults(str(value))
        for name, value in service["environment"].items()
    }
    (kind, *probe) = service["healthcheck"]["test"]
    assert kind == "CMD"
    return Service(where, role, service["command"], environment, [probe])


def kubernetes_resources(folder: str) -> list[dict]:
    """What the kustomization of a folder lists, one by one."""
    (kustomization,) = load(KUBERNETES / folder / "kustomization.yaml")
    files = [KUBERNETES / folder / name for name in kustomization["resources"]]
    return [document for path in files if path.is_file() for document in load(path)]


def pods(resources: list[dict]) -> dict[str, dict]:
    """The pod of each Deployment."""
    return {
        resource["metadata"]["name"]: resource["spec"]["template"]["spec"]
        for resource in resources
        if resource["kind"] == "Deployment"
    }


def kubernetes_services() -> list[Service]:
    """The containers of the base."""
    found = []
    for role, pod in pods(kubernetes_resources("base")).items():
        (container,) = pod["containers"]
        environment = {
            entry["name"]: entry.get("value", "from-a-field") for entry in container["env"]
        }
        probes = [
            container[f"{name}Probe"]["exec"]["command"]
            for name in ("startup", "readiness", "liveness")
        ]
        found.append(Service("kubernetes", role, container["args"], environment, probes))
    return found


SERVICES = [*stack_services(COMPOSE), *stack_services(SWARM), *kubernetes_services()]
