"""Every port against every caller: who is refused, with what, and who is served."""

from __future__ import annotations

import pytest

from exspec.core.ids import Role
from exspec.core.peer_roles import PeerRole
from exspec.v1 import registry_pb2
from exspec.wire.tls import TlsConfig
from tests.security.security_world import (
    DRAFT,
    DRAIN_WORKER,
    GENERATE,
    GET_TOKENIZER,
    HEALTH,
    HEARTBEAT,
    KEY,
    LIST_MODELS,
    REFLECTION,
    REGISTER,
    STATUS,
    VERIFY,
    bearer,
    outcome,
    secure_world,
)

COORDINATOR, WORKER, OPERATOR = PeerRole.COORDINATOR, PeerRole.WORKER, PeerRole.OPERATOR


def _caller(certificates, kind, server_role):
    """TLS as a caller of a kind has it: its certificate, and whom it trusts."""
    if kind == "plain text":
        return None
    trusted, name = certificates.authority(), server_role.value
    if kind == "no certificate":
        return TlsConfig(trusted, server_name=name)
    state, _, role = kind.partition(" ")
    files = certificates.files(PeerRole[role.upper()], "good" if state == "distrustful" else state)
    if state == "distrustful":
        trusted = certificates.authority("stranger")
    return TlsConfig(trusted, files.certfile, files.keyfile, server_name=name)


def _closed_to_outsiders(role: str, others: dict[str, str]) -> list[tuple[str, str]]:
    """Who is refused by TLS itself on a mutual port of `role`, then who is refused by role."""
    outsiders = (
        "plain text", "no certificate", f"stranger {role}", f"expired {role}",
        f"distrustful {role}",
    )  # fmt: skip
    return [(kind, "UNAVAILABLE") for kind in outsiders] + list(others.items())


REGISTRY_CALLERS = _closed_to_outsiders(
    "worker",
    {
        "good worker": "OK",
        "good coordinator": "PERMISSION_DENIED",
        "good operator": "PERMISSION_DENIED",
    },
)
ADMIN_CALLERS = _closed_to_outsiders(
    "operator",
    {
        "good operator": "OK",
        "good worker": "PERMISSION_DENIED",
        "good coordinator": "PERMISSION_DENIED",
    },
)
WORKER_CALLERS = _closed_to_outsiders(
    "coordinator",
    {
        "good coordinator": "OK",
        "good worker": "PERMISSION_DENIED",
        "good operator": "PERMISSION_DENIED",
    },
)


@pytest.mark.parametrize(("kind", "expected"), REGISTRY_CALLERS)
async def test_the_registry_is_for_workers(world, certificates, kind, expected):
    tls = _caller(certificates, kind, COORDINATOR)
    assert await outcome(world.cluster_address, HEARTBEAT, tls) == expected


@pytest.mark.parametrize(("kind", "expected"), ADMIN_CALLERS)
async def test_administration_is_for_operators(world, certificates, kind, expected):
    tls = _caller(certificates, kind, COORDINATOR)
    assert await outcome(world.cluster_address, STATUS, tls) == expected


@pytest.mark.parametrize(("kind", "expected"), WORKER_CALLERS)
async def test_workers_are_for_coordinators(world, certificates, kind, expected):
    tls = _caller(certificates, kind, WORKER)
    target = await world.start(Role.TARGET)
    draft = await world.start(Role.DRAFT)
    assert await outcome(target.address, GET_TOKENIZER, tls) == expected
    assert await outcome(target.address, VERIFY, tls) == expected
    assert await outcome(draft.address, DRAFT, tls) == expected


CLIENT_CALLERS = [
    ("plain text", bearer(KEY), "UNAVAILABLE"),
    ("distrustful worker", bearer(KEY), "UNAVAILABLE"),
    ("no certificate", (), "UNAUTHENTICATED"),
    ("no certificate", bearer("exspec_guessed"), "UNAUTHENTICATED"),
    ("no certificate", bearer(""), "UNAUTHENTICATED"),
    ("no certificate", bearer(KEY) * 2, "UNAUTHENTICATED"),
    ("no certificate", (("authorization", KEY),), "UNAUTHENTICATED"),
    ("no certificate", (("authorization", f"Basic {KEY}"),), "UNAUTHENTICATED"),
    ("no certificate", (("x-api-key", KEY),), "UNAUTHENTICATED"),
    ("good operator", (), "UNAUTHENTICATED"),  # a certificate is no key
    ("no certificate", bearer(KEY), "OK"),
    ("expired operator", bearer(KEY), "OK"),  # nobody asks clients for a certificate
]


@pytest.mark.parametrize(("kind", "metadata", "expected"), CLIENT_CALLERS)
async def test_clients_need_a_key(world, certificates, kind, metadata, expected):
    tls = _caller(certificates, kind, COORDINATOR)
    for method in (LIST_MODELS, STATUS):
        assert await outcome(world.client_address, method, tls, metadata) == expected
    if expected != "OK":
        assert await outcome(world.client_address, GENERATE, tls, metadata) == expected


async def test_nothing_of_a_callers_message_is_read_before_its_key(world):
    broken = await outcome(world.client_address, GENERATE, world.client_tls, request=b"\xff\xff")
    assert broken == "UNAUTHENTICATED"


async def test_clients_find_no_registry_and_no_worker(world, certificates):
    for tls in (world.client_tls, certificates.files(WORKER).as_peer_of(COORDINATOR)):
        for method in (REGISTER, HEARTBEAT, VERIFY, DRAFT):
            found = await outcome(world.client_address, method, tls, bearer(KEY))
            assert found == "UNIMPLEMENTED"
    worker = certificates.files(WORKER).as_peer_of(COORDINATOR)
    assert await outcome(world.cluster_address, GENERATE, worker) == "UNIMPLEMENTED"


async def test_clients_cannot_send_workers_away(world, certificates):
    """Only operators can, on the port that is theirs; other methods of the service are closed."""
    is_there = (
        "DrainWorker" in registry_pb2.DESCRIPTOR.services_by_name["AdminService"].methods_by_name
    )
    expected = "PERMISSION_DENIED" if is_there else "UNIMPLEMENTED"
    tls = world.client_tls
    assert await outcome(world.client_address, DRAIN_WORKER, tls, bearer(KEY)) == expected
    for role in (WORKER, COORDINATOR):
        own = certificates.files(role).as_peer_of(COORDINATOR)
        assert await outcome(world.cluster_address, DRAIN_WORKER, own) == expected


async def test_keys_without_tls_keep_clients_and_workers_apart(certificates, tmp_path):
    """On loopback, say, behind a proxy that speaks TLS."""
    plain = dict.fromkeys(("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"), "")
    async with secure_world(certificates, tmp_path, **plain) as world:
        await world.until_ready(await world.start(Role.TARGET))
        client, cluster = world.client_address, world.cluster_address
        assert await outcome(client, LIST_MODELS, None) == "UNAUTHENTICATED"
        assert await outcome(client, LIST_MODELS, None, bearer(KEY)) == "OK"
        assert await outcome(client, HEARTBEAT, None, bearer(KEY)) == "UNIMPLEMENTED"
        assert await outcome(cluster, STATUS, None) == "OK"
        assert await outcome(client, REFLECTION, None, bearer(KEY)) == "OK"


async def test_health_is_open_to_whoever_passes_tls(world, certificates):
    assert await outcome(world.client_address, HEALTH, world.client_tls) == "OK"
    assert await outcome(world.client_address, HEALTH, None) == "UNAVAILABLE"
    target = await world.start(Role.TARGET)
    for address, role in ((world.cluster_address, COORDINATOR), (target.address, WORKER)):
        for own in PeerRole:
            tls = certificates.files(own).as_peer_of(role)
            assert await outcome(address, HEALTH, tls) == "OK"
        assert await outcome(address, HEALTH, TlsConfig(tls.ca_certs)) == "UNAVAILABLE"


async def test_reflection_is_off_with_tls_and_behind_the_key_when_asked_for(
    world, certificates, tmp_path
):
    operator = certificates.files(OPERATOR).as_peer_of(COORDINATOR)
    for address, tls in (
        (world.client_address, world.client_tls), (world.cluster_address, operator),
    ):  # fmt: skip
        assert await outcome(address, REFLECTION, tls, bearer(KEY)) == "UNIMPLEMENTED"
    async with secure_world(certificates, tmp_path, reflection=True) as told:
        client, tls = told.client_address, told.client_tls
        assert await outcome(client, REFLECTION, tls, bearer(KEY)) == "OK"
        assert await outcome(client, REFLECTION, tls) == "UNAUTHENTICATED"
        assert await outcome(told.cluster_address, REFLECTION, operator) == "OK"


@pytest.mark.parametrize("kind", ["expired", "stranger"])
async def test_callers_refuse_a_coordinator_whose_certificate_is_not_good(
    certificates, tmp_path, kind
):
    files = certificates.files(COORDINATOR, kind)
    own = {"ssl_certfile": files.certfile, "ssl_keyfile": files.keyfile}
    async with secure_world(certificates, tmp_path, **own) as world:
        assert (
            await outcome(world.client_address, LIST_MODELS, world.client_tls, bearer(KEY))
            == "UNAVAILABLE"
        )
        worker = certificates.files(WORKER).as_peer_of(COORDINATOR)
        assert await outcome(world.cluster_address, HEARTBEAT, worker) == "UNAVAILABLE"


async def test_a_worker_certificate_cannot_play_coordinator(certificates, tmp_path):
    """Neither to workers that look for one, nor to a worker that is sent batches."""
    files = certificates.files(WORKER)
    own = {"ssl_certfile": files.certfile, "ssl_keyfile": files.keyfile}
    async with secure_world(certificates, tmp_path, **own) as impostor:
        tls = certificates.files(WORKER).as_peer_of(COORDINATOR)
        assert await outcome(impostor.cluster_address, HEARTBEAT, tls) == "UNAVAILABLE"


@pytest.mark.parametrize("kind", ["expired", "stranger"])
async def test_the_coordinator_sends_nothing_to_a_worker_with_a_bad_certificate(
    world, certificates, kind
):
    """It cannot register; were it registered by another, the link would stay down."""
    bad = await world.start(Role.TARGET, files=certificates.files(WORKER, kind))
    world.parts.registry.register(bad.info)
    await world.until(lambda: "failed to connect" in world.status(bad)[1])
    assert not world.parts.pools.has_target


async def test_the_coordinator_sends_nothing_to_an_operator_that_poses_as_a_worker(
    world, certificates
):
    bad = await world.start(Role.TARGET, files=certificates.files(OPERATOR))
    world.parts.registry.register(bad.info)
    await world.until(lambda: "failed to connect" in world.status(bad)[1])
    assert not world.parts.pools.has_target
