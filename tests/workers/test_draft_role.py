"""How a draft worker is told to draft ahead, and what it says of it at the end."""

from __future__ import annotations

import logging

import pytest
from drafting import PROMPT, ask, reply_of
from toy import ToyRunner, draft_language

from draft_worker.__main__ import DraftRole
from draft_worker.model_proposer import ModelProposer
from draft_worker.servicer import DraftServicer
from draft_worker.settings import DraftSettings
from exspec.core.ids import Role
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
