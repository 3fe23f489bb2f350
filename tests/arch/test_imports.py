"""What starts light stays light: each of these in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "tokenizers", "numpy")


def _run(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def _nothing_heavy(also: tuple[str, ...] = ()) -> str:
    names = (*HEAVY, *also)
    return f"import sys; found = {set(names)!r} & set(sys.modules); assert not found, found"


def test_importing_the_library_loads_neither_torch_nor_servers():
    _run(f"import exspec\n{_nothing_heavy(('grpc', 'grpc_health'))}")


def test_the_client_loads_no_torch():
    _run(f"from exspec import AsyncClient, Client\n{_nothing_heavy()}")


def test_the_plain_install_is_enough_for_the_sdk_and_a_server_of_its_users_tests():
    _run(
        "import sys\n"
        "missing = 'grpc_reflection tokenizers jinja2 torch transformers numpy gguf accelerate'\n"
        "missing += ' prometheus_client'\n"
        "sys.modules.update(dict.fromkeys(missing.split()))\n"
        "import exspec.client\n"
        "from exspec import AsyncClient, Client\n"
        "from exspec.cli.main import app\n"
        "import asyncio\n"
        "from exspec.wire.server import RpcServer\n"
        "async def serve():\n"
        "    server = RpcServer(['a.b.C'])\n"
        "    server.bind('127.0.0.1', 0, allow_insecure=False)\n"
        "    await server.start()\n"
        "    await server.stop(0)\n"
        "asyncio.run(serve())\n"
    )


def test_help_of_the_command_line_loads_no_torch():
    _run(
        "import sys\n"
        "sys.argv = ['exspec', '--help']\n"
        "from exspec.cli.main import app\n"
        "try:\n    app()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        f"{_nothing_heavy()}"
    )


@pytest.mark.parametrize(
    ("options", "code"), [(["--help"], 0), (["--target", "t", "--out", "d", "--epochs", "0"], 2)]
)
def test_distillation_loads_no_torch_before_it_has_a_plan(options, code):
    _run(
        f"import sys\nsys.argv = ['exspec', 'distill', *{options!r}]\n"
        "from exspec.cli.main import app\n"
        f"try:\n    app()\nexcept SystemExit as stop:\n    assert stop.code == {code}\n"
        f"{_nothing_heavy()}"
    )


def test_a_whole_coordinator_loads_no_torch():
    _run(
        "import coordinator.__main__, coordinator.parts, exspec.wire.server\n"
        "import sys; assert not {'torch', 'transformers'} & set(sys.modules)"
    )


@pytest.mark.parametrize("module", ["draft_worker", "target_worker"])
def test_a_worker_loads_torch_with_its_model_and_not_before(module):
    """So that a port in use is reported before a model is loaded."""
    _run(f"import {module}.__main__, exspec.wire.worker_process\n{_nothing_heavy()}")


def test_prometheus_is_loaded_only_to_serve_metrics():
    _run(
        "import coordinator.__main__, coordinator.parts, exspec.wire.worker_process\n"
        "import sys; assert 'prometheus_client' not in sys.modules"
    )
