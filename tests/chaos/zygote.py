"""A process that holds torch and the models and forks worker processes from itself on request.

A Python process that imports torch takes seconds to start, a fork of this one a fraction. gRPC does
not survive a fork, so this process never imports it: its children do, each for itself. Reads JSON
lines from stdin and answers each with one; when stdin ends, its children end with it.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, NoReturn, TextIO

import torch

from draft_worker.settings import DraftSettings
from exspec.engine import worker_model
from exspec.runtime.settings import load_settings
from target_worker.settings import TargetSettings

SETTINGS = {"target_worker": TargetSettings, "draft_worker": DraftSettings}
FOR_CHILDREN = (
    "asyncio",
    "google.protobuf.message",
    "draft_worker.__main__",
    "draft_worker.drafter",
    "draft_worker.model_proposer",
    "target_worker.__main__",
    "target_worker.verifier",
)
"""Imported once, so that no child has to."""
EXIT_CRASHED = 70
PR_SET_PDEATHSIG = 1
MAX_THREADS = 1


def serve(orders: TextIO, answers: TextIO) -> None:
    """Carry out orders until there are no more."""
    codes: dict[int, int] = {}
    for line in orders:
        order: dict[str, Any] = json.loads(line)
        match order["do"]:
            case "load":
                _load(order["module"], order["arguments"])
                answer: dict[str, Any] = {}
            case "fork":
                answer = {"pid": _fork(order["module"], order["arguments"], order["log"])}
            case _:
                _reap(codes)
                answer = {"codes": codes}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _load(module: str, arguments: Sequence[str]) -> None:
    """Load the model of such a worker; its forks find it loaded."""
    settings = load_settings(SETTINGS[module], arguments)
    wanted = worker_model._model_settings(settings, settings.model, None)
    if isinstance(settings, DraftSettings):
        wanted = replace(wanted, draft_weights=settings.draft_weights)
    worker_model.load_model(wanted)
    gc.collect()
    gc.freeze()


def _fork(module: str, arguments: Sequence[str], log: str) -> int:
    if "grpc" in sys.modules:
        raise RuntimeError("gRPC was imported before a fork")
    num_threads = len(os.listdir("/proc/self/task"))
    if num_threads > MAX_THREADS:
        raise RuntimeError(f"{num_threads} threads at a fork")
    pid = os.fork()
    if pid == 0:
        _become(module, arguments, log)
    return pid


def _become(module: str, arguments: Sequence[str], log: str) -> NoReturn:
    """This process is the worker from here on, in a session of its own."""
    code = EXIT_CRASHED
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        code = import_module(f"{module}.__main__").main(list(arguments))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else EXIT_CRASHED
    except BaseException:  # noqa: BLE001 - the edge of the process
        traceback.print_exc()
    logging.shutdown()
    os._exit(code)


def _reap(codes: dict[int, int]) -> None:
    """Collect the children that ended; a code below 0 is the signal that ended them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        codes[pid] = os.waitstatus_to_exitcode(status)


def main() -> None:
    """Serve over stdin and stdout; whatever else prints goes to stderr."""
    for name in FOR_CHILDREN:
        import_module(name)
    torch.set_num_threads(1)
    worker_model.load_model = functools.cache(worker_model.load_model)
    answers = os.fdopen(os.dup(1), "w")
    os.set_inheritable(answers.fileno(), False)
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
