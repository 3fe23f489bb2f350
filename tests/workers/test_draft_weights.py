"""From a draft worker's setting to the body its model runs as."""

from __future__ import annotations

import pytest

from draft_worker.__main__ import _order
from draft_worker.settings import DraftSettings
from exspec.engine.fused.head import FusedHead
from exspec.engine.heads import OwnHead
from exspec.engine.rows import RowInput
from exspec.engine.worker_model import load_worker_model
from target_worker.__main__ import _order as target_order
from target_worker.settings import TargetSettings
from tests.engine.tiny import save_tiny_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("model")))


def worker(settings, order):
    loaded, runner = load_worker_model(settings, order)
    return loaded, runner, runner.forward([RowInput(0, 0, (7, 8, 9, 200), 4)]).choices


def test_a_draft_worker_runs_the_body_it_is_told_to(model_dir):
    options = {"model": model_dir, "dtype": "float64", "max_num_seqs": 1, "max_model_len": 32}
    seen = []
    for draft_weights, kind in (("modules", OwnHead), ("full", FusedHead), ("auto", FusedHead)):
        settings = DraftSettings(draft_weights=draft_weights, **options)
        loaded, runner, choices = worker(settings, _order(settings, None))
        assert type(runner._head) is kind
        assert len(loaded.model.model.layers) == (2 if kind is OwnHead else 0)
        seen.append(choices)
    settings = TargetSettings(**options)
    loaded, runner, choices = worker(settings, target_order(settings, None))
    assert type(runner._head) is OwnHead
    assert loaded.fused is None
    assert set(seen) == {choices}
