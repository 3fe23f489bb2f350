"""Entry point: `python -m target_worker`, or `exspec serve target`. Wires the parts together."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from exspec.core.cluster import WorkerInfo
from exspec.core.ids import Role
from exspec.runtime.clock import monotonic
from exspec.runtime.launch import end_of_rank, rank_place
from exspec.runtime.logs import set_up_logging
from exspec.runtime.settings import load_settings
from exspec.runtime.spinning import spin_briefly
from target_worker.settings import TargetSettings

if TYPE_CHECKING:
    import grpc.aio

    from exspec.engine.worker_model import ModelOrder, WorkerRunner
    from exspec.runtime.launch import RankPlace
    from exspec.runtime.worker_metrics import WorkerMeasures
    from exspec.runtime.worker_thread import WorkerThread
    from exspec.wire.worker_process import Identity
    from target_worker.servicer import TargetServicer


class TargetRole:
    """Loads the model and puts verifier and servicer together."""

    service_name = "exspec.v1.TargetService"

    def __init__(
        self, settings: TargetSettings, identity: Identity, place: RankPlace | None = None
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._place = place
        self._servicer: TargetServicer | None = None
        self._runner: WorkerRunner | None = None

    @property
    def measures(self) -> WorkerMeasures:
        """Of the servicer."""
        assert self._servicer is not None
        return self._servicer.measures

    @property
    def num_sequences(self) -> int:
        """Of the servicer."""
        return self._servicer.num_sequences if self._servicer else 0

    def add_to(self, server: grpc.aio.Server, thread: WorkerThread) -> None:
        """Add TargetService."""
        from exspec.v1 import target_pb2_grpc
        from target_worker.servicer import TargetServicer

        self._servicer = TargetServicer(thread, monotonic, self._identity.incarnation)
        target_pb2_grpc.add_TargetServiceServicer_to_server(self._servicer, server)

    def load(self) -> None:
        """Load and warm up the model; torch is imported here, not for `--help`."""
        from exspec.engine.worker_model import load_worker_model
        from target_worker.verifier import Verifier

        assert self._servicer is not None
        settings = self._settings
        loaded, self._runner = load_worker_model(settings, _order(settings, self._place))
        verifier = Verifier(self._runner, monotonic, orphan_seconds=settings.orphan_seconds)
        self._servicer.open(verifier, loaded.tokenizer)

    def describe(self, address: str) -> WorkerInfo:
        """The worker as it announces itself."""
        assert self._runner is not None
        return WorkerInfo(
            worker_id=self._identity.worker_id,
            incarnation=self._identity.incarnation,
            role=Role.TARGET,
            address=address,
            num_slots=self._runner.num_slots,
            model=replace(self._runner.facts, max_length=self._runner.capacity),
            kv_layout=self._settings.kv_layout,
            kv_bytes=self._runner.kv_bytes,
        )

    def stop_ranks(self) -> None:
        """Let the other ranks of the model end, once nothing is served any more."""
        if self._runner is not None:
            from exspec.engine.worker_model import stop_ranks

            stop_ranks(self._runner)


def _order(settings: TargetSettings, place: RankPlace | None) -> ModelOrder:
    from exspec.engine.worker_model import ModelOrder

    return ModelOrder(Role.TARGET, settings.model, settings.max_num_seqs, place)


def main(argv: list[str]) -> int:
    """Run until told to stop; 1 if the worker could not serve."""
    settings = load_settings(TargetSettings, argv)
    spin_briefly()
    place = rank_place(settings, "target_worker", argv)
    set_up_logging(settings.log_level, settings.log_format)
    if place is not None and place.rank:
        from exspec.engine.worker_model import follow_worker

        return end_of_rank(place, follow_worker(settings, _order(settings, place)))

    from exspec.wire.worker_process import Identity, run_process

    identity = Identity(Role.TARGET, settings.worker_id)
    role = TargetRole(settings, identity, place)
    exit_code = run_process(role, identity, settings)
    role.stop_ranks()
    return end_of_rank(place, exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
