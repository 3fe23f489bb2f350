"""From a worker's settings to a warm model: what both workers do before they register."""

from __future__ import annotations

import logging
import os
import signal
import threading
from dataclasses import dataclass, replace

import torch

from exspec.core.errors import ExspecError
from exspec.core.ids import Role
from exspec.engine.draft_vocabulary import find_draft_vocabulary
from exspec.engine.fused.fusing import MODULES, give_up_layers
from exspec.engine.grammars import GrammarCompiler
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loading import LoadedModel, ModelSettings, load_model
from exspec.engine.model_runner import ModelRunner
from exspec.engine.ranks import Ranks, join_ranks
from exspec.engine.sharded import ShardedRunner, end_process, follow
from exspec.runtime.launch import RankPlace
from exspec.runtime.settings import ModelWorkerSettings

logger = logging.getLogger(__name__)

DEFAULT_MAX_MODEL_LEN = 2048

WorkerRunner = ModelRunner | ShardedRunner


@dataclass(frozen=True, slots=True)
class ModelOrder:
    """Which model a worker holds, for how many sequences, and its place among its ranks.

    A draft that comes with a vocabulary of its own, or is given one (`draft_vocab`, see
    `find_draft_vocabulary`), chooses among those tokens only: the target decides, so that costs
    acceptance at most, and saves most of the head. `draft_weights`: see
    `exspec.engine.fused.fusing`.
    """

    role: Role
    model: str
    num_slots: int
    place: RankPlace | None = None
    draft_vocab: str = ""
    draft_weights: str = MODULES


def load_worker_model(
    settings: ModelWorkerSettings, order: ModelOrder
) -> tuple[LoadedModel, WorkerRunner]:
    """Load the model, preallocate KV and run a small pass; the other ranks do so at the same time.

    Raises:
        ModelNotFoundError, UnsupportedModelError: the model cannot be loaded or served.
        UnavailableError: the other ranks were not found.
    """
    ranks = None if order.place is None else join_ranks(order.place, settings.device)
    loaded, runner = _load(settings, order, ranks)
    serving = runner if ranks is None else ShardedRunner(runner, ranks)
    logger.info(
        "model.loaded model=%s parameters=%d dtype=%s device=%s layout=%s slots=%d capacity=%d "
        "kv_mib=%.1f",
        loaded.facts.name,
        loaded.facts.num_parameters,
        loaded.facts.dtype,
        loaded.facts.device,
        settings.kv_layout,
        runner.num_slots,
        runner.capacity,
        serving.kv_bytes / 2**20,
    )
    return loaded, serving


def stop_ranks(runner: WorkerRunner) -> None:
    """The worker serves no more: the ranks behind it may end, if there are any."""
    if isinstance(runner, ShardedRunner):
        runner.stop()


def follow_worker(settings: ModelWorkerSettings, order: ModelOrder) -> int:
    """Be one of the ranks behind rank 0 until it says stop; the exit code."""
    assert order.place is not None
    stopping = _Stopping()
    try:
        ranks = join_ranks(order.place, settings.device)
        _loaded, runner = _load(settings, order, ranks)
    except (ExspecError, OSError) as error:
        rank = order.place.rank
        logger.error("worker.failed rank=%d reason=%s", rank, error)  # noqa: TRY400 - reason enough
        return 1
    stopping.wait_for_leader()
    logger.info("rank.ready rank=%d", order.place.rank)
    follow(runner, ranks, stopping.end)
    ranks.leave()
    return 0


class _Stopping:
    """What a follower makes of a signal to stop: its launcher sends it to rank 0 as well.

    While it loads it ends. Later rank 0 has calls to finish, and says when there are no more.
    The main thread is mostly inside torch, waiting for other ranks, where Python's handlers do not
    run; so the number of the signal is written to a pipe at once and a thread acts on it.
    """

    def __init__(self) -> None:
        self._is_loading = True
        self._was_told = False
        self._numbers, written = os.pipe()
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        threading.Thread(target=self._hear, name="stopping", daemon=True).start()

    def wait_for_leader(self) -> None:
        """The model is loaded."""
        self._is_loading = False

    def end(self) -> None:
        """Rank 0 is gone without a word, which is in order if it was told to stop while loading."""
        if self._was_told:
            os._exit(0)
        end_process()

    def _hear(self) -> None:
        while os.read(self._numbers, 1):
            self._was_told = True
            if self._is_loading:
                os._exit(0)


def _load(
    settings: ModelWorkerSettings, order: ModelOrder, ranks: Ranks | None
) -> tuple[LoadedModel, ModelRunner]:
    """What every rank does."""
    num_ranks = 1 if ranks is None else ranks.num_ranks
    if settings.num_threads is not None or num_ranks > 1:
        share = max(1, torch.get_num_threads() // num_ranks)
        torch.set_num_threads(settings.num_threads or share)
    wanted = _model_settings(settings, order.model, ranks)
    loaded = load_model(replace(wanted, draft_weights=order.draft_weights))
    grammars = GrammarCompiler(loaded.tokenizer, loaded.facts)
    runner = ModelRunner(
        loaded,
        layout=KvLayoutName(settings.kv_layout),
        num_slots=order.num_slots,
        capacity=min(loaded.facts.max_length, settings.max_model_len or DEFAULT_MAX_MODEL_LEN),
        choices_among=_draft_vocabulary(order, loaded) if order.role is Role.DRAFT else None,
        open_matcher=grammars.open,
    )
    if loaded.fused is not None:
        give_up_layers(loaded.model)
    runner.warm_up()
    if ranks is None or ranks.is_leader:  # the others never hear of rules
        grammars.prepare()
    if ranks is not None:
        ranks.expect_passes()
    return loaded, runner


def _draft_vocabulary(order: ModelOrder, loaded: LoadedModel) -> tuple[int, ...] | None:
    """What the head of a draft is cut to."""
    token_ids = find_draft_vocabulary(order.draft_vocab, loaded)
    if token_ids is not None:
        logger.info("draft.vocabulary rows=%d of=%d", len(token_ids), loaded.facts.vocab_size)
    return token_ids


def _model_settings(
    settings: ModelWorkerSettings, model: str, ranks: Ranks | None
) -> ModelSettings:
    return ModelSettings(
        model=model,
        revision=settings.revision,
        gguf_file=settings.gguf_file,
        dtype=settings.dtype,
        device=settings.device,
        trust_remote_code=settings.trust_remote_code,
        served_name=settings.served_model_name,
        max_model_len=settings.max_model_len,
        device_map=settings.device_map,
        ranks=ranks,
    )
