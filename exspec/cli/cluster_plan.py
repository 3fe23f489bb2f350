"""What a local cluster is made of, and the command line of each of its processes. Pure."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from exspec.core.errors import InvalidRequestError
from exspec.core.ids import Role

NO_DRAFT = "none"
HOST = "127.0.0.1"
COORDINATOR = "coordinator"
CHILD_GRACE_SECONDS = 5.0
DEFAULT_MAX_NUM_SEQS = 8

# A local cluster is what its plan says, whatever the environment says of another cluster.
_PLAIN_TEXT = {"--ssl-certfile": "", "--ssl-keyfile": "", "--ssl-ca-certs": ""}
_ONE_OPEN_PORT = {"--cluster-port": "None", "--api-keys-file": ""}

_MODULES = {Role.TARGET: "target_worker", Role.DRAFT: "draft_worker"}

NO_ADVICE = "none"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A coordinator and its workers on this machine.

    `port` is the coordinator's, 0 takes a free one; workers always take free ones. `max_num_seqs`
    are the sequences a target can hold (None: the window, else the batch, else 8), `batch_size` the
    rows it verifies at once (None: `max_num_seqs`, else 8, within the window). Elsewhere None
    leaves a setting to the service. What is measured or compared must not depend on what a model's
    makers advise, so their advice is off unless said. Logs go to `log_dir`, or to a folder that is
    removed after a clean stop. `coordinator_flags`, `target_flags` and `draft_flags` are handed on
    as they are.
    """

    model: str = "smollm2-135m-instruct"
    draft_model: str = "smollm2-draft"
    num_targets: int = 1
    num_drafts: int = 1
    port: int = 0
    policy: str | None = None
    batch_size: int | None = None
    window_size: int | None = None
    num_speculative_tokens: int | str | None = None
    generation_config: str | None = NO_ADVICE
    draft_sample_method: str | None = None
    draft_vocab: str | None = None
    draft_weights: str | None = None
    lookup: str | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    kv_layout: str = "slots"
    dtype: str | None = None
    device: str | None = None
    num_threads: int | None = None
    log_level: str = "info"
    log_dir: Path | None = None
    coordinator_flags: tuple[str, ...] = ()
    target_flags: tuple[str, ...] = ()
    draft_flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.num_targets < 1:
            raise InvalidRequestError("a cluster needs at least one target", field="target")
        if self.num_drafts < 0:
            raise InvalidRequestError("the number of drafts must be 0 or more", field="draft")
        if self.draft_model == NO_DRAFT and self.num_drafts:
            object.__setattr__(self, "num_drafts", 0)

    def coordinator_command(self, port_file: Path) -> list[str]:
        """How to start the coordinator."""
        flags = {
            "--port": self.port,
            "--policy": self.policy,
            "--window-size": self.window_size,
            "--batch-size": self._rows(),
            "--num-speculative-tokens": self.num_speculative_tokens,
            "--generation-config": self.generation_config,
            **self._service_flags(port_file),
            **_ONE_OPEN_PORT,
        }
        return [*_python("coordinator"), *_flags(flags), *self.coordinator_flags]

    def worker_command(self, role: Role, name: str, coordinator: str, port_file: Path) -> list[str]:
        """How to start a worker."""
        is_target = role is Role.TARGET
        flags = {
            "--model": self.model if is_target else self.draft_model,
            "--worker-id": name,
            "--coordinator": coordinator,
            "--port": 0,
            "--max-num-seqs": self._target_slots() if is_target else self._draft_slots(),
            "--max-model-len": self.max_model_len,
            "--kv-layout": self.kv_layout,
            "--dtype": self.dtype,
            "--device": self.device,
            "--num-threads": self._threads(self.num_targets if is_target else self.num_drafts),
            "--draft-sample-method": None if is_target else self.draft_sample_method,
            "--draft-vocab": None if is_target else self.draft_vocab,
            "--draft-weights": None if is_target else self.draft_weights,
            "--lookup": None if is_target else self.lookup,
            **self._service_flags(port_file),
        }
        own_flags = self.target_flags if is_target else self.draft_flags
        return [*_python(_MODULES[role]), *_flags(flags), *own_flags]

    def _rows(self) -> int:
        """What one verify batch holds."""
        if self.batch_size is not None:
            return self.batch_size
        slots = self._target_slots()
        return min(self.max_num_seqs or DEFAULT_MAX_NUM_SEQS, slots, self.window_size or slots)

    def _target_slots(self) -> int:
        """Every sequence of the window has a slot."""
        return self.max_num_seqs or self.window_size or self.batch_size or DEFAULT_MAX_NUM_SEQS

    def _draft_slots(self) -> int:
        """A draft worker may be home to the rows of several targets."""
        return self._target_slots() * math.ceil(self.num_targets / max(self.num_drafts, 1))

    def _threads(self, num_workers: int) -> int | None:
        """Workers of one role compute at the same time: share the cores out among them."""
        if self.num_threads is not None or num_workers < 2:
            return self.num_threads
        return max(1, (os.cpu_count() or 1) // num_workers)

    def _service_flags(self, port_file: Path) -> dict[str, object]:
        return {
            "--host": HOST,
            "--port-file": port_file,
            "--log-level": self.log_level,
            "--grace-seconds": CHILD_GRACE_SECONDS,
            **_PLAIN_TEXT,
        }


def _python(module: str) -> list[str]:
    """-P: a folder that happens to be named like a service must not shadow it."""
    return [sys.executable, "-P", "-m", module]


def _flags(flags: dict[str, object]) -> list[str]:
    given = [(name, str(value)) for name, value in flags.items() if value is not None]
    return [part for flag in given for part in flag]
