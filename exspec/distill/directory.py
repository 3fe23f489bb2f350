"""Whose a draft's directory is: one plan's, and one run's at a time.

A directory is taken with its plan written down in it. The same plan goes on there; another plan is
refused once the first has come to something, a directory that something else made always.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from exspec.core.errors import InvalidRequestError
from exspec.distill.disk import told_when_full, write_or_tell
from exspec.distill.plan import DistillPlan

_PLAN_FILE = "plan.json"
_LOCK_FILE = "lock"
_MAY_DIFFER = ("minutes", "out")
STAGING_PREFIX = ".export-"
"""Of folders in the draft's directory where files wait for their place."""
_NO_WORK = (_PLAN_FILE, _LOCK_FILE, "runs.json")
"""Files that are there before anything was made."""


@contextmanager
def taken(plan: DistillPlan) -> Iterator[None]:
    """The plan's directory, for this run alone. Made if it is not there.

    Raises:
        InvalidRequestError: if it is a file, holds what `exspec distill` did not make or what
            another plan made (`field` names what differs), or another run works in it.
        CapacityError: if the disk is full.
    """
    stated = _stated(plan)
    with told_when_full(plan.out, len(json.dumps(stated)), "the plan"):
        _check_free_or_ours(plan)
        plan.work_dir.mkdir(parents=True, exist_ok=True)
        lock = (plan.work_dir / _LOCK_FILE).open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidRequestError(
                f"another run works in {plan.out}; end it first", field="out"
            ) from error
        _settle(plan, stated)
        _clear(plan)
        yield


def _check_free_or_ours(plan: DistillPlan) -> None:
    """Nothing there, an empty directory, or one with a plan of ours."""
    out = plan.out
    if out.exists() and not out.is_dir():
        raise InvalidRequestError(f"{out} is not a directory", field="out")
    is_ours = (plan.work_dir / _PLAN_FILE).is_file()
    if out.is_dir() and not is_ours and any(path.name != "work" for path in out.iterdir()):
        raise InvalidRequestError(
            f"{out} is not empty, and not made by exspec distill; give another --out", field="out"
        )


def _clear(plan: DistillPlan) -> None:
    """Remove what a run left behind that was killed while it wrote."""
    for path in plan.out.glob(f"{STAGING_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in (*plan.out.glob(".*.partial"), *plan.work_dir.glob("*.partial")):
        path.unlink(missing_ok=True)


def _settle(plan: DistillPlan, stated: dict[str, Any]) -> None:
    """Write the plan down, or compare it with the one that is there."""
    path = plan.work_dir / _PLAN_FILE
    has_work = any(one.name not in _NO_WORK for one in plan.work_dir.iterdir())
    if not path.is_file() or not has_work:
        write_or_tell(path, (json.dumps(stated, indent=2) + "\n").encode(), "the plan")
        return
    before = _read(path.read_bytes(), plan)
    for name, value in stated.items():
        if name not in _MAY_DIFFER and before.get(name) != value:
            raise InvalidRequestError(
                f"{plan.out} holds a draft made with another plan: {name} is "
                f"{json.dumps(before.get(name))} there and {json.dumps(value)} here; go on with "
                "the same values, or give another --out",
                field=name,
            )


def _read(content: bytes, plan: DistillPlan) -> Mapping[str, Any]:
    """The plan that was written down."""
    try:
        before = json.loads(content)
    except ValueError as error:
        raise InvalidRequestError(
            f"{plan.work_dir / _PLAN_FILE} cannot be read: {error}; give another --out", field="out"
        ) from error
    if not isinstance(before, dict):
        raise InvalidRequestError(
            f"{plan.work_dir / _PLAN_FILE} is not a plan; give another --out", field="out"
        )
    return before


def _stated(plan: DistillPlan) -> dict[str, Any]:
    """All that decides what comes out, the prompts' content for their file's name included."""
    stated = plan.as_dict()
    if plan.prompts is not None:
        try:
            stated["prompts"] = f"sha256 {sha256(plan.prompts.read_bytes()).hexdigest()}"
        except OSError as error:
            raise InvalidRequestError(
                f"{plan.prompts} cannot be read: {error.strerror}", field="prompts"
            ) from error
    return stated
