"""Whether a reply fits what was asked, and whose fault a refused entry is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.replies import check_draft, check_verify, fatal_error
from exspec.core.choosing import TokenLogprobs
from exspec.core.errors import InternalError, InvalidRequestError, ProtocolError
from exspec.core.ids import BatchId, SequenceId
from exspec.core.rounds import (
    DraftBatch,
    DraftEntry,
    DraftReply,
    DraftResult,
    EntryKey,
    EntryStatus,
    PassTimings,
    VerifyBatch,
    VerifyEntry,
    VerifyReply,
    VerifyResult,
)

KEY = EntryKey(SequenceId("s"), 0, 1)


def _scores(*token_ids: int) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(token_id, -1.0) for token_id in token_ids)


DECIDING = VerifyEntry(KEY, 3, (20, 21), (30, 31, 32))
DECIDED = VerifyResult(KEY, EntryStatus.OK, 7, 2, 40, logprobs=_scores(30, 31, 40))
CHUNK = VerifyEntry(KEY, 3, (20, 21, 22), is_prefill=True, next_token=23)
FED = VerifyResult(KEY, EntryStatus.OK, 6, prompt_start=4, prompt_logprobs=_scores(21, 22, 23))


def _check(entry: VerifyEntry, result: VerifyResult) -> None:
    check_verify(
        VerifyBatch(BatchId(1), (entry,)), VerifyReply(BatchId(1), (result,), PassTimings())
    )


@pytest.mark.parametrize(
    ("entry", "result"),
    [
        (DECIDING, DECIDED),
        (DECIDING, replace(DECIDED, logprobs=())),
        (DECIDING, replace(DECIDED, prompt_start=4, prompt_logprobs=_scores(21))),
        (CHUNK, FED),
        (CHUNK, replace(FED, prompt_start=5, prompt_logprobs=_scores(22))),
        (CHUNK, replace(FED, prompt_start=0, prompt_logprobs=())),
    ],
)
def test_logprobs_of_the_tokens_that_were_asked_about_fit(entry, result):
    _check(entry, result)


@pytest.mark.parametrize(
    ("entry", "result"),
    [
        (DECIDING, replace(DECIDED, logprobs=_scores(30, 31))),
        (DECIDING, replace(DECIDED, logprobs=_scores(30, 31, 32, 40))),
        (DECIDING, replace(DECIDED, logprobs=_scores(30, 32, 40))),
        (DECIDING, replace(DECIDED, prompt_start=4, prompt_logprobs=_scores(21, 30))),
        (CHUNK, replace(FED, logprobs=_scores(23))),
        (CHUNK, replace(FED, prompt_logprobs=_scores(21, 22, 24))),
        (CHUNK, replace(FED, prompt_logprobs=_scores(21, 22, 23, 24))),
        (CHUNK, replace(FED, prompt_start=3, prompt_logprobs=_scores(20))),
        (CHUNK, replace(FED, prompt_start=0, prompt_logprobs=_scores(21))),
        (replace(CHUNK, next_token=None), FED),
    ],
)
def test_logprobs_of_other_tokens_make_no_sense(entry, result):
    with pytest.raises(ProtocolError, match="logprobs"):
        _check(entry, result)


def _refused(detail: str, *, has_rules: bool = True):
    result = VerifyResult(KEY, EntryStatus.INVALID, 0, detail=detail)
    return fatal_error(result, 0, has_rules=has_rules)


@pytest.mark.parametrize(
    ("detail", "field"),
    [
        ("structured: the grammar is empty", "structured"),
        ("bad_words, min_tokens: no token is left to choose at position 9", "bad_words"),
        ("sampling: no token is left to choose at position 9", "sampling"),
    ],
)
def test_what_a_requests_rules_make_impossible_is_its_fault(detail, field):
    error = _refused(detail)
    assert type(error) is InvalidRequestError
    assert (error.field, error.message) == (field, detail)


@pytest.mark.parametrize(
    ("detail", "has_rules"),
    [
        ("token id 99 is outside the vocabulary of 97", True),
        ("structured: the grammar is empty", False),
        ("what: ever", True),
        ("", True),
    ],
)
def test_any_other_entry_that_cannot_be_served_is_ours(detail, has_rules):
    assert isinstance(_refused(detail, has_rules=has_rules), InternalError)


@pytest.mark.parametrize(
    ("num_looked_up", "draft_tokens", "fits"),
    [(0, (1, 2), True), (2, (1, 2), True), (0, (), True), (3, (1, 2), False), (1, (), False),
     (-1, (1, 2), False)],
)  # fmt: skip
def test_no_more_tokens_were_looked_up_than_were_proposed(num_looked_up, draft_tokens, fits):
    batch = DraftBatch(BatchId(1), (DraftEntry(KEY, 0, (20, 21), 4),))
    result = DraftResult(KEY, EntryStatus.OK, 2, draft_tokens, num_looked_up=num_looked_up)
    reply = DraftReply(BatchId(1), (result,), PassTimings())
    if fits:
        check_draft(batch, reply)
    else:
        with pytest.raises(ProtocolError, match="looked up"):
            check_draft(batch, reply)
