"""Requests through TLS and keys: what clients get, and what they are told when refused."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from toy import continuation
from toy_tokenizers import byte_level
from typer.testing import CliRunner

from exspec import AsyncClient, AuthenticationError, Client, TlsConfig, UnavailableError
from exspec.cli.checks import Verdict, run_checks
from exspec.cli.connect import Connect
from exspec.cli.main import app
from exspec.client.attempts import ClientSettings
from exspec.core.errors import InvalidRequestError
from exspec.core.ids import Role
from exspec.core.models import TokenizerAssets
from exspec.core.peer_roles import PeerRole
from tests.security.security_world import KEY

PROMPT = "MY SECRET SENTENCE"
"""In bytes that the toy model has tokens for."""


@pytest.fixture
async def serving(world):
    """A target and a draft have joined, with a tokenizer of bytes."""
    tokenizer = TokenizerAssets(byte_level().to_str())
    target = await world.start(Role.TARGET, tokenizer=tokenizer)
    draft = await world.start(Role.DRAFT)
    await world.until_ready(target)
    await world.until_ready(draft)
    return world


async def test_a_generation_goes_through_tls_and_a_key(serving):
    access = {"api_key": KEY, "tls": serving.client_tls}
    prompt = (11, 0, 2)

    def ask_blocking():
        with Client(serving.client_address, **access) as client:
            return client.generate(prompt, max_tokens=12), client.cluster_status()

    result, status = await asyncio.to_thread(ask_blocking)
    assert result.token_ids == continuation(prompt, 12)
    assert result.speculation.num_draft_tokens > 0
    assert len(status.workers) == 2
    async with AsyncClient(serving.client_address, **access) as client:
        result = await client.generate(prompt, max_tokens=12)
        assert result.token_ids == continuation(prompt, 12)


async def test_a_client_without_a_good_key_is_told_so_at_once(serving):
    for key in (None, "exspec_guessed"):
        async with AsyncClient(
            serving.client_address, api_key=key, tls=serving.client_tls
        ) as client:
            with pytest.raises(AuthenticationError) as caught:
                await client.generate((1, 2), max_tokens=2)
            assert "guessed" not in str(caught.value)
            with pytest.raises(AuthenticationError):
                await client.cluster_status()


async def test_a_client_that_cannot_agree_on_tls_cannot_reach_the_coordinator(
    serving, certificates
):
    for tls in (None, TlsConfig(certificates.authority("stranger"))):
        async with AsyncClient(
            serving.client_address, api_key=KEY, tls=tls, max_retries=0
        ) as client:
            with pytest.raises(UnavailableError, match=serving.client_address):
                await client.generate((1, 2), max_tokens=2)


def test_a_key_or_a_file_that_cannot_be_one_is_refused_without_a_call(tmp_path):
    for key in ("", "a b", "ä", "k\n"):
        with pytest.raises(InvalidRequestError) as caught:
            Client("127.0.0.1:1", api_key=key)
        assert caught.value.field == "api_key"
    with pytest.raises(InvalidRequestError, match="nowhere") as caught:
        Client("127.0.0.1:1", tls=TlsConfig(tmp_path / "nowhere.pem"))
    assert caught.value.field == "ssl_ca_certs"


def test_settings_and_options_do_not_show_the_key():
    assert "hidden" not in repr(
        ClientSettings("a:1", 1.0, 1.0, 0, resume_timeout=1.0, api_key="hidden")
    )
    assert "hidden" not in repr(Connect(api_key="hidden"))


async def test_nothing_of_prompts_and_keys_is_logged(serving, caplog):
    caplog.set_level(logging.DEBUG)
    for key in (KEY, "exspec_guessed"):
        async with AsyncClient(
            serving.client_address, api_key=key, tls=serving.client_tls, max_retries=0
        ) as client:
            try:
                result = await client.generate(PROMPT, max_tokens=5)
            except AuthenticationError:
                assert key != KEY
            else:
                assert result.usage.num_prompt_tokens == len(PROMPT)
    assert "auth.refused" in caplog.text
    for secret in (PROMPT, "SECRET", KEY, "guessed"):
        assert secret not in caplog.text


async def _run(*args, env=None):
    return await asyncio.to_thread(CliRunner().invoke, app, [*args], env=env)


async def test_commands_take_key_and_certificates(serving, certificates):
    authority = ("--ssl-ca-certs", certificates.authority())
    at = ("--address", serving.client_address)
    shown = await _run("status", *at, *authority, "--api-key", KEY, "--json")
    assert shown.exit_code == 0, shown.output
    assert len(json.loads(shown.stdout)["workers"]) == 2
    env = {"EXSPEC_API_KEY": KEY, "EXSPEC_SSL_CA_CERTS": certificates.authority()}
    text = await _run("generate", *at, "--no-chat", "--max-tokens", "3", PROMPT, env=env)
    assert text.exit_code == 0, text.output
    refused = await _run("generate", *at, *authority, PROMPT)
    assert refused.exit_code == 2
    assert "AuthenticationError" in refused.stderr
    assert (await _run("status", *at)).exit_code == 1  # in plain text
    assert (await _run("status", *at, "--tls")).exit_code == 1  # not the system's authority
    missing = await _run("status", *at, "--ssl-ca-certs", "/nowhere/ca.pem")
    assert (missing.exit_code, "/nowhere/ca.pem" in missing.stderr) == (2, True)


async def test_operators_see_the_cluster_on_its_own_port(serving, certificates):
    files = certificates.files(PeerRole.OPERATOR)
    own = {
        "EXSPEC_SSL_CA_CERTS": files.ca_certs, "EXSPEC_SSL_CERTFILE": files.certfile,
        "EXSPEC_SSL_KEYFILE": files.keyfile,
    }  # fmt: skip
    shown = await _run("status", "--address", serving.cluster_address, env=own)
    assert shown.exit_code == 0, shown.output


async def test_health_can_be_asked_on_every_port(serving, certificates):
    files = certificates.files(PeerRole.WORKER)
    own = (
        "--ssl-ca-certs", files.ca_certs, "--ssl-certfile", files.certfile,
        "--ssl-keyfile", files.keyfile,
    )  # fmt: skip
    target, worker = serving.workers[0].address, PeerRole.WORKER.value
    for address, options, code in (
        (serving.client_address, own[:2], 0),
        (serving.client_address, (), 1),
        (serving.cluster_address, own, 0),
        (serving.cluster_address, own[:2], 1),
        (target, (*own, "--ssl-server-name", worker), 0),
        (target, (*own, "--ssl-server-name", PeerRole.COORDINATOR.value), 1),
        (target, (*own[:2], "--ssl-server-name", worker), 1),
    ):
        told = await _run("health", "--address", address, *options)
        assert told.exit_code == code, (address, options, told.output)


async def test_doctor_tells_a_cluster_that_does_not_let_one_in(serving):
    connect = Connect(serving.client_address, ssl_ca_certs=str(serving.client_tls.ca_certs))
    finding = (await asyncio.to_thread(run_checks, connect))[-1]
    assert (finding.verdict, "let us in" in finding.detail) == (Verdict.WARN, True)
    with_key = Connect(
        serving.client_address, api_key=KEY, ssl_ca_certs=str(serving.client_tls.ca_certs)
    )
    assert (await asyncio.to_thread(run_checks, with_key))[-1].verdict is Verdict.OK
