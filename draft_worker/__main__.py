"""Entry point: `python -m draft_worker`, or `exspec serve draft`. Wires the parts together."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from draft_worker.settings import NGRAM, DraftSettings
from exspec.core.cluster import WorkerInfo
from exspec.core.ids import Role
from exspec.core.models import ModelFacts
from exspec.runtime.clock import monotonic
from exspec.runtime.launch import end_of_rank, rank_place
from exspec.runtime.logs import set_up_logging
from exspec.runtime.settings import load_settings
from exspec.runtime.spinning import spin_briefly

if TYPE_CHECKING:
    import grpc.aio

    from draft_worker.drafter import Drafter
    from draft_worker.proposer import Proposer
    from draft_worker.servicer import DraftServicer
    from exspec.engine.worker_model import ModelOrder, WorkerRunner
    from exspec.runtime.launch import RankPlace
    from exspec.runtime.worker_metrics import WorkerMeasures
    from exspec.runtime.worker_thread import WorkerThread
    from exspec.wire.worker_process import Identity

logger = logging.getLogger(__name__)


class DraftRole:
    """Loads the draft (a model or the n-gram table) and puts drafter and servicer together."""

    service_name = "exspec.v1.DraftService"

    def __init__(
        self, settings: DraftSettings, identity: Identity, place: RankPlace | None = None
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._place = place
        self._servicer: DraftServicer | None = None
        self._runner: WorkerRunner | None = None
        self._drafter: Drafter | None = None

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
        """Add DraftService."""
        from draft_worker.servicer import DraftServicer
        from exspec.v1 import draft_pb2_grpc

        self._servicer = DraftServicer(thread, monotonic, self._identity.incarnation)
        draft_pb2_grpc.add_DraftServiceServicer_to_server(self._servicer, server)

    def load(self) -> None:
        """Load and warm up; torch is imported only if there is a model."""
        from draft_worker.drafter import Drafter

        assert self._servicer is not None
        self._drafter = Drafter(
            self._proposer(),
            monotonic,
            orphan_seconds=self._settings.orphan_seconds,
            num_ahead=self._settings.draft_ahead,
        )
        self._servicer.open(self._drafter)

    def describe(self, address: str) -> WorkerInfo:
        """The worker as it announces itself."""
        runner = self._runner
        return WorkerInfo(
            worker_id=self._identity.worker_id,
            incarnation=self._identity.incarnation,
            role=Role.DRAFT,
            address=address,
            num_slots=self._settings.max_num_seqs,
            model=_ngram_facts()
            if runner is None
            else replace(runner.facts, max_length=runner.capacity),
            kv_layout="" if runner is None else self._settings.kv_layout,
            kv_bytes=0 if runner is None else runner.kv_bytes,
            draft_for=self._settings.draft_for,
        )

    def log_totals(self) -> None:
        """What drafting ahead was good for, once, when the worker has stopped."""
        if self._drafter is None or not self._settings.draft_ahead:
            return
        ahead = self._drafter.ahead
        logger.info(
            "draft.ahead drafted=%d proposed=%d wasted=%d",
            ahead.num_drafted,
            ahead.num_proposed,
            ahead.num_wasted,
        )

    def stop_ranks(self) -> None:
        """Let the other ranks of the model end, once nothing is served any more."""
        if self._runner is not None:
            from exspec.engine.worker_model import stop_ranks

            stop_ranks(self._runner)

    def _proposer(self) -> Proposer:
        settings = self._settings
        if settings.model == NGRAM:
            from draft_worker.ngram_proposer import NgramProposer

            return NgramProposer(
                num_slots=settings.max_num_seqs,
                longest=settings.ngram_max,
                shortest=settings.ngram_min,
            )
        from draft_worker.model_proposer import ModelProposer
        from draft_worker.rules import SampleMethod
        from exspec.engine.worker_model import load_worker_model

        _loaded, self._runner = load_worker_model(settings, _order(settings, self._place))
        model = ModelProposer(self._runner, SampleMethod(settings.draft_sample_method))
        if settings.lookup == "off" or settings.draft_ahead:
            return model
        from draft_worker.beside_proposer import BesideProposer

        return BesideProposer(
            model,
            longest=settings.ngram_max,
            shortest=settings.ngram_min,
            least_chance=settings.draft_min_chance,
        )


def _order(settings: DraftSettings, place: RankPlace | None) -> ModelOrder:
    from exspec.engine.worker_model import ModelOrder

    return ModelOrder(
        Role.DRAFT,
        settings.model,
        settings.max_num_seqs,
        place,
        settings.draft_vocab,
        draft_weights=settings.draft_weights,
    )


def _ngram_facts() -> ModelFacts:
    from draft_worker.ngram_proposer import NGRAM_CAPACITY

    return ModelFacts(
        name=NGRAM,
        architecture=NGRAM,
        vocab_size=0,
        tokenizer_size=0,
        tokenizer_sha256="",
        max_length=NGRAM_CAPACITY,
        stop_token_ids=(),
        dtype="",
        device="cpu",
        num_parameters=0,
        fingerprint=NGRAM,
    )


def main(argv: list[str]) -> int:
    """Run until told to stop; 1 if the worker could not serve."""
    settings = load_settings(DraftSettings, argv)
    spin_briefly()
    place = rank_place(settings, "draft_worker", argv)
    set_up_logging(settings.log_level, settings.log_format)
    if place is not None and place.rank:
        from exspec.engine.worker_model import follow_worker

        return end_of_rank(place, follow_worker(settings, _order(settings, place)))

    from exspec.wire.worker_process import Identity, run_process

    identity = Identity(Role.DRAFT, settings.worker_id)
    role = DraftRole(settings, identity, place)
    exit_code = run_process(role, identity, settings)
    role.stop_ranks()
    role.log_totals()
    return end_of_rank(place, exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
