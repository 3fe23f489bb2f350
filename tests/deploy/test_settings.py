"""The deployment files name settings, ports and services that there are."""

from __future__ import annotations

import re

import pytest
import typer.main

from draft_worker.__main__ import DraftRole
from exspec.cli.main import app
from exspec.core.peer_roles import PeerRole
from target_worker.__main__ import TargetRole
from tests.deploy.manifests import (
    COMPOSE,
    KUBERNETES,
    ROOT,
    SERVICES,
    SETTINGS,
    SWARM,
    VARIABLE,
    load,
    stack_services,
)

WORKER_SERVICES = {"target": TargetRole.service_name, "draft": DraftRole.service_name}
PREFIX = "EXSPEC_"


def test_every_file_runs_all_roles():
    assert len(SERVICES) == 3 * len(SETTINGS)


@pytest.mark.parametrize("service", SERVICES, ids=str)
def test_every_variable_is_a_setting_and_can_be_read(service, monkeypatch):
    known = SETTINGS[service.role].model_fields
    named = [name for name in service.environment if name.startswith(PREFIX)]
    assert not [name for name in named if name.removeprefix(PREFIX).lower() not in known]
    settings = service.settings(monkeypatch)
    assert settings.has_tls
    assert not settings.allow_insecure_bind
    assert settings.host == "0.0.0.0"


@pytest.mark.parametrize("service", SERVICES, ids=str)
def test_probes_ask_the_right_port_for_the_right_service(service, monkeypatch):
    settings = service.settings(monkeypatch)
    monkeypatch.delenv("EXSPEC_ADDRESS", raising=False)
    for probe in service.probes:
        options = _options_of(probe)
        assert options.get("address", "127.0.0.1:50050") == f"127.0.0.1:{settings.port}"
        if service.role == "coordinator":
            assert options.get("service") in (None, "exspec.v1.GenerationService")
            continue
        assert options["ssl_server_name"] == PeerRole.WORKER.value
        assert options.get("service") in (None, WORKER_SERVICES[service.role])


def _options_of(probe):
    """What `exspec health` is told, as it would read it."""
    assert probe[:2] == ["exspec", "health"]
    command = typer.main.get_command(app).commands["health"]
    context = command.make_context("health", list(probe[2:]))
    given = {
        name for name in context.params if context.get_parameter_source(name).name != "DEFAULT"
    }
    return {name: context.params[name] for name in given}


@pytest.mark.parametrize("path", [COMPOSE, SWARM], ids=lambda path: path.stem)
def test_workers_find_the_coordinators_cluster_port(path, monkeypatch):
    coordinator, *workers = stack_services(path)
    port = coordinator.environment["EXSPEC_CLUSTER_PORT"]
    assert {worker.environment["EXSPEC_COORDINATOR"] for worker in workers} == {
        f"{coordinator.role}:{port}"
    }


@pytest.mark.parametrize("path", [COMPOSE, SWARM], ids=lambda path: path.stem)
def test_what_is_scaled_has_no_name_and_no_port_of_its_own(path):
    (stack,) = load(path)
    for role in ("target", "draft"):
        service = stack["services"][role]
        assert not {"container_name", "ports", "hostname"} & set(service)
        assert service["deploy"]["replicas"].startswith("${")


def test_compose_publishes_the_clients_port_on_loopback_and_nothing_else():
    (stack,) = load(COMPOSE)
    published = [
        port for service in stack["services"].values() for port in service.get("ports", ())
    ]
    assert published == ["127.0.0.1:${EXSPEC_PORT:-50050}:50050"]


def test_each_role_of_compose_sees_its_own_certificates_only():
    (stack,) = load(COMPOSE)
    roles = {"coordinator": "coordinator", "target": "worker", "draft": "worker"}
    for service, role in {**roles, "cluster": "operator"}.items():
        mounted = [volume for volume in stack["services"][service]["volumes"] if "/certs" in volume]
        assert mounted == [f"{role}-certs:/certs:ro"]
        assert stack["services"][service]["environment"]["EXSPEC_SSL_CERTFILE"] == (
            f"/certs/{role}.pem"
        )


def test_everything_that_can_be_set_is_explained():
    files = [COMPOSE, *(ROOT / "compose").glob("*.yaml"), ROOT / "compose.yaml"]
    text = "\n".join(path.read_text() for path in files)
    read = {found[1] for found in VARIABLE.finditer(text)} | set(
        re.findall(r"^ +([A-Z][A-Z_]+):$", text, flags=re.MULTILINE)
    )
    example = (ROOT / ".env.example").read_text()
    explained = set(re.findall(r"^#?([A-Z][A-Z_]+)=", example, flags=re.MULTILINE))
    assert explained - {"COMPOSE_FILE"} == read
    assert "COMPOSE_FILE" in explained


def test_the_screen_can_read_its_options():
    (stack,) = load(COMPOSE)
    service = stack["services"]["cluster"]
    command = typer.main.get_command(app).commands[service["command"][0]]
    variables = {name for option in command.params for name in _names(option.envvar)}
    assert set(service["environment"]) <= variables


def _names(envvar):
    return [envvar] if isinstance(envvar, str) else envvar or []


def test_cert_manager_issues_for_the_roles_that_peers_check():
    issued = {
        document["spec"]["secretName"]: document["spec"]["dnsNames"][0]
        for document in load(KUBERNETES / "components" / "cert-manager" / "certificates.yaml")
        if "dnsNames" in document["spec"]
    }
    assert issued == {
        "exspec-coordinator-tls": PeerRole.COORDINATOR.value,
        "exspec-worker-tls": PeerRole.WORKER.value,
    }
