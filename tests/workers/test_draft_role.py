"""How a draft worker is told to draft ahead, and what it says of it at the end."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from drafting import PROMPT, ask, reply_of
from toy import ToyRunner, draft_language

from draft_worker.__main__ import DraftRole
from draft_worker.model_proposer import ModelProposer
from draft_worker.servicer import DraftServicer
from draft_worker.settings import DraftSettings
from exspec.core.choosing import ChoiceRules
from exspec.core.ids import Role
from exspec.engine import worker_model
from exspec.runtime.clock import monotonic
from exspec.runtime.settings import load_settings
from exspec.runtime.worker_thread import WorkerThread
from exspec.wire.worker_process import Identity


def _loaded_role(monkeypatch, num_ahead: int) -> DraftRole:
    settings = load_settings(DraftSettings, ["--draft-ahead", str(num_ahead)])
    role = DraftRole(settings, Identity(Role.DRAFT, "d"))
    proposer = ModelProposer(ToyRunner(draft_language))
    monkeypatch.setattr(role, "_proposer", lambda: proposer)
    role._servicer = DraftServicer(WorkerThread("worker"), monotonic, "life-1")
    role.load()
    return role


def test_what_became_of_it_is_logged_once_at_the_end(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    role = _loaded_role(monkeypatch, 3)
    reply_of(role._drafter, ask(PROMPT, 2))
    while role._drafter.draft_ahead():
        pass
    reply_of(role._drafter, released=["s"])
    assert "draft.ahead" not in caplog.text
    role.log_totals()
    assert "draft.ahead drafted=3 proposed=0 wasted=3" in caplog.text


def test_it_is_off_unless_asked_for(monkeypatch, caplog):
    assert DraftSettings().draft_ahead == 0
    caplog.set_level(logging.INFO)
    _loaded_role(monkeypatch, 0).log_totals()
    assert "draft.ahead" not in caplog.text


def test_the_ngram_draft_does_not_do_it(capsys):
    with pytest.raises(SystemExit):
        load_settings(DraftSettings, ["--model", "ngram", "--draft-ahead", "2"])
    assert "--draft-ahead" in capsys.readouterr().err
    assert load_settings(DraftSettings, ["--model", "ngram"]).draft_ahead == 0


@pytest.mark.parametrize("method", ["shared", "greedy"])
def test_how_to_draft_for_requests_that_sample_is_a_setting(monkeypatch, method):
    """Unless told otherwise, with the target's noise."""
    runner = ToyRunner(draft_language)
    monkeypatch.setattr(worker_model, "load_worker_model", lambda *_: (None, runner))
    settings = load_settings(DraftSettings, ["--draft-sample-method", method])
    assert DraftSettings().draft_sample_method == "shared"
    proposer = DraftRole(settings, Identity(Role.DRAFT, "d"))._proposer()
    rules = ChoiceRules(5, temperature=0.7, repetition_penalty=1.1)
    proposer.open_choosing(rules)
    followed = rules if method == "shared" else replace(rules, temperature=0.0)
    assert runner.opened == [followed]


def test_another_way_to_draft_is_refused(capsys):
    with pytest.raises(SystemExit):
        load_settings(DraftSettings, ["--draft-sample-method", "gumbel"])
    assert "--draft-sample-method" in capsys.readouterr().err
