"""The engine, the image, and one project that the tests of a module share."""

from __future__ import annotations

import subprocess

import pytest

from tests.compose.load import PROMPTS, generate
from tests.compose.stack import ROOT, Stack


@pytest.fixture(scope="session")
def engine():
    """An engine that answers; asked for, it must be there."""
    done = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"no Docker engine answers: {done.stderr.strip()}")


@pytest.fixture(scope="session")
def image(engine):
    """Our image, of the code as it is."""
    command = ["docker", "compose", "build", "certs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return "exspec:latest"


@pytest.fixture(scope="module")
def stack(image, tmp_path_factory, request):
    """A cluster of one target and one draft, with the screen; gone at the end, come what may."""
    stack = Stack(tmp_path_factory.mktemp("stack"), EXSPEC_LOST_SECONDS="3")
    num_failed = request.session.testsfailed
    try:
        stack.up("cluster")
        stack.wait_for(target=1, draft=1)
        yield stack
    finally:
        if request.session.testsfailed > num_failed:
            stack.print_logs()
        stack.down()


@pytest.fixture(scope="module")
def truth(stack):
    """What plain decoding says, by the same target, without a draft."""
    with stack.client() as client:
        return {prompt: generate(client, prompt, 0) for prompt in PROMPTS}
