"""Prometheus, Grafana and Compose files fit each other and keep what is ours to ourselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

COMPOSE = Path(__file__).parents[2] / "compose"
PROFILE = "observability"
DURATION = re.compile(r"^([0-9]+(ms|[smhdwy]))+$")

SCRAPE_KEYS = {"job_name", "scheme", "tls_config", "dns_sd_configs"}
TLS_KEYS = {"ca_file", "cert_file", "key_file", "server_name"}
DNS_KEYS = {"names", "type", "port", "refresh_interval"}
RULE_KEYS = {"alert", "expr", "for", "labels", "annotations"}


def _read(*parts: str):
    return yaml.safe_load(COMPOSE.joinpath(*parts).read_text())


@pytest.fixture
def services():
    return _read("observability.yaml")["services"]


def test_prometheus_follows_every_role_by_name():
    config = _read("prometheus", "prometheus.yml")
    assert set(config) == {"global", "rule_files", "scrape_configs"}
    assert all(DURATION.match(value) for value in config["global"].values())
    names = {}
    for scrape in config["scrape_configs"]:
        assert set(scrape) == SCRAPE_KEYS
        assert set(scrape["tls_config"]) == TLS_KEYS
        (found,) = scrape["dns_sd_configs"]
        assert set(found) == DNS_KEYS
        assert found["type"] == "A"
        assert DURATION.match(found["refresh_interval"])
        (name,) = found["names"]
        names[name] = scrape["tls_config"]["server_name"]
    assert names == {
        "coordinator": "coordinator.exspec.internal",
        "target": "worker.exspec.internal",
        "draft": "worker.exspec.internal",
    }


def test_what_is_scraped_is_what_is_served(services):
    config = _read("prometheus", "prometheus.yml")
    for scrape in config["scrape_configs"]:
        (found,) = scrape["dns_sd_configs"]
        environment = services[found["names"][0]]["environment"]
        assert environment["EXSPEC_METRICS_PORT"] == found["port"]
        assert environment["EXSPEC_METRICS_HOST"] == "0.0.0.0"
        # Encrypted, for our own only: nothing is asked to do without.
        assert scrape["scheme"] == "https"
        assert "EXSPEC_ALLOW_INSECURE_BIND" not in environment


def test_prometheus_shows_the_operators_certificate_that_it_is_given(services):
    mounts = dict(volume.split(":")[:2] for volume in services["prometheus"]["volumes"])
    assert mounts["operator-certs"] == "/certs"
    for scrape in _read("prometheus", "prometheus.yml")["scrape_configs"]:
        tls = scrape["tls_config"]
        assert tls["ca_file"] == "/certs/ca.pem"
        assert tls["cert_file"] == "/certs/operator.pem"
        assert tls["key_file"] == "/certs/operator-key.pem"


def test_mounted_files_are_there(services):
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (COMPOSE / source).is_dir(), source
    for name in _read("prometheus", "prometheus.yml")["rule_files"]:
        assert (COMPOSE / "prometheus" / name).is_file()


def test_nothing_of_it_runs_unasked_or_is_seen_beyond_this_machine(services):
    for name in ("prometheus", "grafana"):
        assert services[name]["profiles"] == [PROFILE]
        assert services[name]["ports"]
        for port in services[name]["ports"]:
            assert port.startswith("127.0.0.1:")


def test_grafana_lets_look_and_has_no_account(services):
    environment = services["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert not [name for name in environment if "PASSWORD" in name]


def test_grafana_finds_prometheus_and_the_dashboard(services):
    (source,) = _read("grafana", "provisioning", "datasources", "prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = _read("grafana", "provisioning", "dashboards", "exspec.yaml")["providers"]
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert Path(home).parent == Path(provider["options"]["path"])


def test_alerts_are_complete():
    (group,) = _read("prometheus", "alerts.yml")["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names)
    for rule in group["rules"]:
        assert set(rule) <= RULE_KEYS
        assert DURATION.match(rule.get("for", "0s"))
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
