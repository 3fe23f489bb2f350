"""API keys: the file, who is recognised, changes at run time, the commands, and who a client is."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import stat

import pytest
from typer.testing import CliRunner

from exspec.cli.main import app
from exspec.core import api_keys
from exspec.core.api_keys import (
    KEY_PREFIX,
    add_key,
    digest_of,
    find_name,
    new_key,
    parse_keys,
    remove_key,
)
from exspec.core.errors import AuthenticationError, InvalidRequestError
from exspec.wire.auth import KeyGuard, client_name, host_of, open_key_file, presented_key
from tests.security.security_world import KEY, LIST_MODELS, bearer, outcome

HASH = "ab" * 32


class Caller:
    """A call with metadata, from an address."""

    def __init__(self, *metadata, peer="ipv4:10.1.2.3:5"):
        self._metadata = metadata
        self._peer = peer

    def peer(self):
        return self._peer

    def invocation_metadata(self):
        return self._metadata

    def auth_context(self):
        return {}


def test_keys_are_drawn_and_told_apart():
    keys = {new_key() for _ in range(50)}
    assert len(keys) == 50
    assert all(key.startswith(KEY_PREFIX) and len(key) == len(KEY_PREFIX) + 43 for key in keys)


def test_a_file_is_read_with_its_comments():
    text = f"# ours\n\nalice:{HASH}  # of the lab\n  bob.2:{'cd' * 32}\n"
    assert [(key.name, key.digest.hex()) for key in parse_keys(text)] == [
        ("alice", HASH),
        ("bob.2", "cd" * 32),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"ok:{'cd' * 32}\nalice {HASH}", "line 2"),
        (f"alice:{HASH[1:]}", "line 1"),
        (f"alice:{HASH.upper()}", "line 1"),
        (f":{HASH}", "line 1"),
        (f"a b:{HASH}", "line 1"),
        (f"a:{HASH}\na:{'cd' * 32}", "name is there twice"),
        (f"a:{HASH}\nb:{HASH}", "one key"),
    ],
)
def test_a_broken_file_says_where_and_nothing_of_its_content(text, says):
    with pytest.raises(InvalidRequestError, match=says) as caught:
        parse_keys(text)
    assert HASH[:8] not in caught.value.message


def test_adding_and_removing_leaves_the_rest_as_it_is():
    text = f"# ours\nbob:{HASH}"
    added = add_key(text, "alice", KEY)
    assert added == f"{text}\nalice:{hashlib.sha256(KEY.encode()).hexdigest()}\n"
    assert find_name(parse_keys(added), KEY) == "alice"
    assert remove_key(added, "alice") == text + "\n"
    with pytest.raises(InvalidRequestError, match="already"):
        add_key(added, "alice", new_key())
    with pytest.raises(InvalidRequestError, match="no key"):
        remove_key(text, "alice")
    for name in ("", "a:b", "a#b", "-a", "x" * 65, "a b"):
        with pytest.raises(InvalidRequestError, match="name"):
            add_key("", name, KEY)


def test_every_key_of_the_file_is_compared_in_constant_time(monkeypatch):
    """Also after the right one was found: how long it takes says nothing of where it stands."""
    keys = parse_keys("".join(f"k{i}:{digest_of(str(i)).hex()}\n" for i in range(5)))
    seen = []
    original = hmac.compare_digest
    monkeypatch.setattr(
        api_keys.hmac,
        "compare_digest",
        lambda first, second: (seen.append(first), original(first, second))[1],
    )
    assert find_name(keys, "0") == "k0"
    assert find_name(keys, "nobody's") is None
    assert seen == [key.digest for key in keys] * 2


def test_a_key_is_presented_once_and_as_a_bearer():
    assert presented_key([("authorization", "Bearer k")]) == "k"
    assert presented_key([("x", "y"), ("authorization", "bearer  k ")]) == "k"
    for values in (["k"], ["Basic k"], ["Bearer"], ["Bearer "], ["Bearer a", "Bearer a"]):
        with pytest.raises(AuthenticationError, match="Bearer KEY"):
            presented_key([("authorization", value) for value in values])
    with pytest.raises(AuthenticationError, match="needed"):
        presented_key([("x", "y")])


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:127.0.0.1:1234", "127.0.0.1"),
        ("ipv6:%5B::1%5D:1234", "::1"),
        ("ipv6:[2001:db8::1]:1", "2001:db8::1"),
        ("unix:/tmp/x", "unix:/tmp/x"),
    ],
)
async def test_a_client_without_a_key_is_known_by_its_host(peer, host):
    assert host_of(peer) == host
    assert client_name(Caller(peer=peer)) == host


async def test_a_client_with_a_key_is_known_by_its_name_in_its_own_call_only(tmp_path):
    path = tmp_path / "keys"
    path.write_text(add_key(add_key("", "alice", KEY), "bob", "other"))
    guard = KeyGuard(open_key_file(str(path), lambda: 0.0))

    async def serve(key):
        call = Caller(*bearer(key))
        guard("/s/M", call)
        return await asyncio.create_task(named(call))

    async def named(call):
        await asyncio.sleep(0)
        return client_name(call)

    calls = [asyncio.create_task(serve(key)) for key in (KEY, "other", KEY)]
    assert await asyncio.gather(*calls) == ["alice", "bob", "alice"]
    assert client_name(Caller()) == "10.1.2.3"


def test_the_file_is_looked_at_once_a_second_and_a_broken_one_keeps_the_old_keys(
    tmp_path, caplog, monkeypatch
):
    from exspec.runtime import watched

    monkeypatch.setattr(watched, "CHECK_SECONDS", 1.0)
    caplog.set_level(logging.INFO)
    path, seconds = tmp_path / "keys", [0.0]
    path.write_text(add_key("", "alice", KEY))
    keys = open_key_file(str(path), lambda: seconds[0])

    def names():
        return [key.name for key in keys.current()]

    path.write_text(add_key("", "bob", KEY))
    assert names() == ["alice"]
    seconds[0] = 1.0
    assert names() == ["bob"]
    path.write_text("not keys at all: secret")
    for _ in range(3):
        seconds[0] += 1.0
        assert names() == ["bob"]
    path.unlink()
    for _ in range(3):
        seconds[0] += 1.0
        assert names() == ["bob"]
    path.write_text("# nobody\n")
    seconds[0] += 1.0
    assert names() == []
    kept = [r for r in caplog.records if r.getMessage().startswith("files.kept_old")]
    assert len(kept) == 2
    assert "secret" not in caplog.text
    assert str(path) in kept[0].getMessage()


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"alice"])
def test_a_file_that_is_none_is_named_at_start(tmp_path, content):
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidRequestError, match="--api-keys-file") as caught:
        open_key_file(str(path), lambda: 0.0)
    assert str(path) in caught.value.message
    assert caught.value.field == "api_keys_file"


async def test_a_running_coordinator_takes_new_keys_and_forgets_old_ones(world):
    async def may(key):
        return await outcome(world.client_address, LIST_MODELS, world.client_tls, bearer(key))

    assert await may(KEY) == "OK"
    assert await may("exspec_new") == "UNAUTHENTICATED"
    world.key_file.write_text(add_key(world.key_file.read_text(), "bob", "exspec_new"))
    assert (await may(KEY), await may("exspec_new")) == ("OK", "OK")
    world.key_file.write_text(remove_key(world.key_file.read_text(), "alice"))
    assert (await may(KEY), await may("exspec_new")) == ("UNAUTHENTICATED", "OK")


def test_the_commands_keep_only_hashes(tmp_path):
    runner, path = CliRunner(), tmp_path / "keys"

    def keys(*args, code=0):
        result = runner.invoke(app, ["keys", *args, "--file", str(path)])
        assert result.exit_code == code, result.output
        return result

    key = keys("add", "alice").stdout.strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = keys("add", "bob").stdout.strip()
    assert key != other
    assert key not in path.read_text()
    assert find_name(parse_keys(path.read_text()), key) == "alice"
    assert keys("list").stdout == "alice\nbob\n"
    assert keys("list", "--json").stdout.split() == ["[", '"alice",', '"bob"', "]"]
    keys("remove", "alice")
    assert find_name(parse_keys(path.read_text()), key) is None
    assert find_name(parse_keys(path.read_text()), other) == "bob"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_text()
    keys("add", "bob", code=2)
    keys("remove", "carol", code=2)
    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["keys"]
    path.unlink()
    assert str(path) in keys("list", code=1).stderr
