"""Worker and cluster messages: values survive the trip, nonsense is refused by name."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exspec.core.cluster import (
    ClusterStatus,
    PoolStatus,
    Totals,
    WorkerInfo,
    WorkerState,
    WorkerStatus,
)
from exspec.core.errors import ProtocolError
from exspec.core.ids import BatchId, Role, SequenceId, WorkerId
from exspec.core.models import ModelFacts, TokenizerAssets
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
from exspec.v1 import common_pb2, draft_pb2, registry_pb2, target_pb2
from exspec.wire import convert, convert_cluster, convert_model
from tests.wire.sampling_strategies import ADVICE, LOGPROBS, RULES

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
NAMES = st.text(min_size=1, max_size=12)
TOKENS = st.lists(U32, min_size=1, max_size=6).map(tuple)
DRAFTS = st.lists(U32, max_size=6).map(tuple)
SECONDS = st.floats(0, 1e9, allow_nan=False)
KEYS = st.builds(EntryKey, NAMES.map(SequenceId), U64, U64)
RELEASED = st.lists(NAMES.map(SequenceId), max_size=3).map(tuple)
BATCH_IDS = U64.map(BatchId)
TIMINGS = st.builds(PassTimings, SECONDS, SECONDS, SECONDS, SECONDS, U32, U32, U32)
STATUSES = st.sampled_from(EntryStatus)


def _distinct(entries: st.SearchStrategy) -> st.SearchStrategy:
    lists = st.lists(entries, max_size=4, unique_by=lambda entry: entry.key.sequence_id)
    return lists.map(tuple)


RULED = (st.none() | RULES, st.none() | U32)
PREFILLS = st.builds(VerifyEntry, KEYS, U32, TOKENS, st.just(()), st.just(value=True), *RULED)
VERIFIES = (
    st.builds(VerifyEntry, KEYS, U32, TOKENS, DRAFTS, st.just(value=False), *RULED) | PREFILLS
)
VERIFY_BATCHES = st.builds(VerifyBatch, BATCH_IDS, _distinct(VERIFIES), RELEASED)
VERIFY_RESULTS = st.builds(
    VerifyResult, KEYS, STATUSES, U32, U32, st.none() | U32, st.text(), LOGPROBS, U32, LOGPROBS
)
VERIFY_REPLIES = st.builds(
    VerifyReply, BATCH_IDS, st.lists(VERIFY_RESULTS, max_size=3).map(tuple), TIMINGS
)
DRAFT_ENTRIES = st.builds(
    DraftEntry, KEYS, U32, TOKENS, st.integers(1, 2**32 - 1), st.none() | RULES
)
DRAFT_BATCHES = st.builds(DraftBatch, BATCH_IDS, _distinct(DRAFT_ENTRIES), RELEASED)
DRAFT_RESULTS = st.builds(DraftResult, KEYS, STATUSES, U32, DRAFTS, st.text(), U32)
DRAFT_REPLIES = st.builds(
    DraftReply, BATCH_IDS, st.lists(DRAFT_RESULTS, max_size=3).map(tuple), TIMINGS
)
LABELS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=8)
FACTS = st.builds(
    ModelFacts,
    name=LABELS.filter(bool),
    architecture=LABELS,
    vocab_size=st.integers(1, 2**32 - 1),
    tokenizer_size=U32,
    tokenizer_sha256=LABELS,
    max_length=st.integers(1, 2**32 - 1),
    stop_token_ids=DRAFTS,
    dtype=LABELS,
    device=LABELS,
    num_parameters=U64,
    fingerprint=LABELS,
    generation=ADVICE,
)
WORKERS = st.builds(
    WorkerInfo,
    worker_id=LABELS.filter(bool).map(WorkerId),
    incarnation=LABELS.filter(bool),
    role=st.sampled_from(Role),
    address=LABELS.filter(bool),
    num_slots=st.integers(1, 2**32 - 1),
    model=FACTS,
    kv_layout=LABELS,
    kv_bytes=U64,
)
TOTALS = st.builds(
    Totals,
    **{f.name: U64 if f.type == "int" else SECONDS for f in dataclasses.fields(Totals)},
)
CLUSTERS = st.builds(
    ClusterStatus,
    version=st.text(max_size=8),
    is_ready=st.booleans(),
    model=st.text(max_size=8),
    policy=st.text(max_size=8),
    workers=st.lists(
        st.builds(
            WorkerStatus, WORKERS, st.sampled_from(WorkerState), st.text(max_size=8), U32, SECONDS
        ),
        max_size=2,
    ).map(tuple),
    num_waiting=U32,
    num_running=U32,
    max_waiting=U32,
    speculation=st.text(max_size=8),
    window_size=U32,
    predicted_speedup=SECONDS,
    measured_speedup=SECONDS,
    uptime_seconds=SECONDS,
    totals=TOTALS,
)


def _through(message):
    """Over the wire: bytes and back."""
    return type(message).FromString(message.SerializeToString())


@given(VERIFY_BATCHES)
def test_verify_batches_survive(batch):
    message = _through(convert.verify_batch_to_message(batch))
    assert convert.verify_batch_from_message(message) == batch


@given(VERIFY_REPLIES)
def test_verify_replies_survive(reply):
    message = _through(convert.verify_reply_to_message(reply))
    assert convert.verify_reply_from_message(message) == reply


@given(DRAFT_BATCHES)
def test_draft_batches_survive(batch):
    message = _through(convert.draft_batch_to_message(batch))
    assert convert.draft_batch_from_message(message) == batch


@given(DRAFT_REPLIES)
def test_draft_replies_survive(reply):
    message = _through(convert.draft_reply_to_message(reply))
    assert convert.draft_reply_from_message(message) == reply


@given(WORKERS)
def test_workers_survive(worker):
    message = _through(convert_cluster.worker_to_message(worker))
    assert convert_cluster.worker_from_message(message) == worker


@given(CLUSTERS)
def test_the_clusters_status_survives(status):
    message = _through(convert_cluster.status_to_message(status))
    assert convert_cluster.status_from_message(message) == status


def test_a_tokenizer_survives():
    assets = TokenizerAssets('{"a": "ü"}', "{{ messages }}", {"bos_token": "<s>"})
    message = _through(convert_model.tokenizer_to_message(assets))
    assert convert_model.tokenizer_from_message(message) == assets


def _verify(**changes):
    entry = {"key": common_pb2.EntryKey(sequence_id="s"), "tokens": [1]} | changes
    return target_pb2.VerifyRequest(entries=[target_pb2.VerifyEntry(**entry)])


def _draft(**changes):
    key = common_pb2.EntryKey(sequence_id="s")
    entry = {"key": key, "tokens": [1], "num_draft_tokens": 1} | changes
    return draft_pb2.DraftRequest(entries=[draft_pb2.DraftEntry(**entry)])


@pytest.mark.parametrize(
    ("message", "names"),
    [
        (_verify(tokens=[]), "tokens"),
        (_verify(key=common_pb2.EntryKey()), "sequence_id"),
        (_verify(is_prefill=True, draft_tokens=[2]), "draft_tokens"),
        (target_pb2.VerifyRequest(entries=2 * list(_verify().entries)), "once"),
    ],
)
def test_senseless_verify_batches_are_refused(message, names):
    with pytest.raises(ProtocolError, match=names):
        convert.verify_batch_from_message(message)


@pytest.mark.parametrize(
    ("message", "names"),
    [
        (_draft(tokens=[]), "tokens"),
        (_draft(key=None), "sequence_id"),
        (draft_pb2.DraftRequest(entries=2 * list(_draft().entries)), "once"),
    ],
)
def test_senseless_draft_batches_are_refused(message, names):
    with pytest.raises(ProtocolError, match=names):
        convert.draft_batch_from_message(message)


@pytest.mark.parametrize("status", [common_pb2.ENTRY_STATUS_UNSPECIFIED, 77])
def test_an_unknown_entry_status_is_refused(status):
    key = common_pb2.EntryKey(sequence_id="s")
    verify = target_pb2.VerifyResponse(results=[target_pb2.VerifyResult(key=key, status=status)])
    draft = draft_pb2.DraftResponse(results=[draft_pb2.DraftResult(key=key, status=status)])
    with pytest.raises(ProtocolError, match="status"):
        convert.verify_reply_from_message(verify)
    with pytest.raises(ProtocolError, match="status"):
        convert.draft_reply_from_message(draft)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"role": common_pb2.ROLE_UNSPECIFIED}, "role"),
        ({"worker_id": ""}, "worker_id"),
        ({"incarnation": ""}, "incarnation"),
        ({"address": ""}, "address"),
        ({"num_slots": 0}, "num_slots"),
        ({"model": common_pb2.ModelInfo()}, "max_length"),
        ({"worker_id": "w" * 513}, "worker_id"),
        ({"draft_for": "m" * 513}, "draft_for"),
        ({"model": common_pb2.ModelInfo(max_length=8, name="n" * 513)}, "name"),
        ({"model": common_pb2.ModelInfo(max_length=8)}, "name"),
        ({"model": common_pb2.ModelInfo(max_length=8, name="a\nb")}, r"name .* 'a\\nb'"),
        ({"worker_id": "w\x1b[2J"}, "worker_id"),
        ({"draft_for": "m\u2028"}, "draft_for"),
        ({"role": common_pb2.ROLE_TARGET}, "vocab_size"),
    ],
)
def test_a_worker_that_says_too_little_or_too_much_is_refused(changes, names):
    values = {
        "worker_id": "w",
        "incarnation": "i",
        "role": common_pb2.ROLE_DRAFT,
        "address": "a:1",
        "num_slots": 1,
        "model": common_pb2.ModelInfo(max_length=8, name="m"),
    }
    with pytest.raises(ProtocolError, match=names):
        convert_cluster.worker_from_message(common_pb2.WorkerInfo(**(values | changes)))


def test_the_state_of_a_cluster_comes_back_as_it_was():
    model = ModelFacts("m", "a", 1, 1, "", 8, (2,), "float32", "cpu", 1, "f")
    info = WorkerInfo(WorkerId("w"), "i", Role.DRAFT, "a:1", 1, model, draft_for="big")
    worker = WorkerStatus(info, WorkerState.DRAINING, "why", 3, 1.5, "big")
    pool = PoolStatus("big", True, 1, 2, 3, 4, 1.5, 2.5, Totals(num_rounds=7, round_seconds=0.5))
    status = ClusterStatus("1", True, "big, small", "exspec", (worker,), pools=(pool,))
    message = convert_cluster.status_to_message(status)
    assert convert_cluster.status_from_message(message) == status


def test_an_unknown_worker_state_is_refused():
    model = ModelFacts("m", "a", 1, 1, "", 8, (), "float32", "cpu", 1, "f")
    info = WorkerInfo(WorkerId("w"), "i", Role.DRAFT, "a:1", 1, model)
    worker = convert_cluster.worker_to_message(info)
    status = registry_pb2.WorkerStatus(worker=worker)
    message = registry_pb2.GetClusterStatusResponse(workers=[status])
    with pytest.raises(ProtocolError, match="state"):
        convert_cluster.status_from_message(message)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_timings_that_are_no_times_are_refused(seconds):
    """They would be added to sums that never recover."""
    timings = common_pb2.PassTimings(forward_seconds=seconds)
    with pytest.raises(ProtocolError, match="forward_seconds"):
        convert.verify_reply_from_message(target_pb2.VerifyResponse(timings=timings))
    with pytest.raises(ProtocolError, match="forward_seconds"):
        convert.draft_reply_from_message(draft_pb2.DraftResponse(timings=timings))


def test_advice_that_no_request_could_give_is_a_protocol_error():
    """Else every request that leaves the parameter out would be refused for it."""
    advice = common_pb2.GenerationDefaults(top_p=2.0)
    with pytest.raises(ProtocolError, match=r"worker.model.generation: top_p"):
        convert_model.facts_from_message(common_pb2.ModelInfo(generation=advice))
