"""What broke other systems that speculate: for each case, what must hold.

Served by the real driver, scheduler, verifier and drafter over tiny models; held against plain
decoding by the judge.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from draft_worker.model_proposer import ModelProposer
from exspec.core.acceptance import FinishReason
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loading import ModelSettings, wrap_model
from exspec.engine.model_runner import ModelRunner
from tests.engine import policy_workers
from tests.engine.policy_courses import MAX_TOKENS, PROMPTS, plain_run
from tests.engine.policy_world import Request
from tests.engine.scripted_drafts import CAPACITY, SETTING, Tokens, sampled, serve
from tests.engine.tiny import VOCAB_SIZE, tiny_model

FAMILY = SETTING.family
PAD = 0
PADDED_SIZE = 128
EVERY_K = (None, 0, 1, 2, 3, 5, 7)
DIFFERENT_RULES = (
    {"temperature": 0.0, "repetition_penalty": 1.5},
    {},
    {"top_k": 5, "frequency_penalty": 1.0},
    {"top_p": 0.7},
    {"temperature": 2.0, "min_p": 0.05},
    {"typical_p": 0.8, "presence_penalty": -1.0},
    {"temperature": 0.5, "logit_bias": ((7, 4.0), (11, -9.0))},
)


def request_of(prompt: Tokens, seed: int = 0, **rules) -> Request:
    return Request(prompt, MAX_TOKENS, rules=sampled(prompt, seed, **rules))


def truth_of(request: Request) -> Tokens:
    """Plain decoding, as far as the request goes."""
    run = plain_run(FAMILY, request.prompt, request.stops, request.rules)
    return run.tokens[: request.max_tokens]


def check(*requests: Request) -> None:
    for request in requests:
        assert tuple(request.tokens) == truth_of(request)


def right(request: Request):
    """A script: what the target will choose, on and on."""
    whole = (*request.prompt, *truth_of(replace(request, stops=(), max_tokens=MAX_TOKENS)))
    return lambda log, number: whole[len(log) : len(log) + number]


def wrong(request: Request):
    """A script: never what the target will choose."""
    truth = right(request)
    return lambda log, number: [(token + 1) % VOCAB_SIZE for token in truth(log, number)]


def test_a_vocabulary_padded_to_another_size_draws_with_the_same_noise(monkeypatch):
    """The same model with more rows in its head: it proposes what an equal one would."""
    wide = tiny_model(FAMILY, vocab_size=PADDED_SIZE)
    with torch.no_grad():
        for name, weights in tiny_model(FAMILY).named_parameters():
            own = wide.get_parameter(name)
            own[: len(weights)] = weights
            if own.shape != weights.shape:
                own[len(weights) :] = -weights[: len(own) - len(weights)] / 2
    runner = ModelRunner(
        wrap_model(wide, ModelSettings("wide")),
        layout=KvLayoutName.SLOTS,
        num_slots=8,
        capacity=CAPACITY,
    )
    monkeypatch.setitem(policy_workers.DRAFTS, "wide", lambda *_: ModelProposer(runner))
    requests = [request_of(prompt, seed) for seed, prompt in enumerate(PROMPTS[:6])]
    wide_stats = serve(requests, "wide")
    check(*requests)
    num_drafts = sum(one.num_draft_tokens for one in wide_stats)
    assert sum(one.num_accepted_tokens for one in wide_stats) > 0.6 * num_drafts > 0


@pytest.mark.parametrize("stranger", [-1, VOCAB_SIZE, 10**6])
def test_a_draft_the_target_has_no_token_for_is_rejected_with_all_after_it(stranger):
    request = request_of(PROMPTS[0])
    truth = right(request)
    (stats,) = serve([request], lambda log, number: [*truth(log, 1), stranger, *truth(log, number)])
    check(request)
    assert stats.num_accepted_per_position[0] > 0
    assert not any(stats.num_accepted_per_position[1:])


@pytest.mark.parametrize("draft", ["equal", "fallible", "other"])
def test_rows_of_every_k_are_what_each_is_alone(draft, layout):
    requests = [
        replace(request_of(prompt, seed, **rules), num_speculative_tokens=k)
        for seed, (prompt, k, rules) in enumerate(
            zip(PROMPTS, EVERY_K, DIFFERENT_RULES, strict=False)
        )
    ]
    serve(requests, draft, layout=layout)
    check(*requests)


def test_without_an_accepted_draft_a_round_brings_the_targets_own_token_and_no_more():
    request = request_of(PROMPTS[1])
    (stats,) = serve([request], wrong(request))
    check(request)
    assert stats.num_accepted_tokens == 0
    assert stats.num_draft_tokens > 0
    assert stats.num_rounds == MAX_TOKENS


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_block_goes_beyond_the_last_token_that_is_wanted(temperature):
    """Every row at another distance from its end; nothing is drafted that could not be used."""
    requests = [
        replace(request_of(prompt, temperature=temperature), max_tokens=number)
        for number, prompt in enumerate(PROMPTS[:8], start=1)
    ]
    for request, stats in zip(requests, serve(requests), strict=True):
        check(request)
        assert request.end.finish_reason is FinishReason.LENGTH
        assert stats.num_draft_tokens <= request.max_tokens - 1
        assert stats.num_accepted_tokens == stats.num_draft_tokens


def test_a_row_that_fills_the_context_ends_there_and_others_go_on():
    full = request_of(tuple(range(6, CAPACITY - 2)))
    full.max_tokens = CAPACITY - len(full.prompt)
    other = request_of(PROMPTS[2], seed=3)
    serve([full, other])
    check(full, other)
    assert len(full.prompt) + len(full.tokens) == CAPACITY


def test_rows_that_do_not_speculate_share_batches_with_rows_that_do():
    requests = [request_of(prompt, seed) for seed, prompt in enumerate(PROMPTS[:6])]
    for request in requests[::2]:
        request.num_speculative_tokens = 0
    stats = serve(requests)
    check(*requests)
    assert all(one.num_draft_tokens == 0 for one in stats[::2])
    assert all(one.num_accepted_tokens > 0 for one in stats[1::2])


def test_a_seed_means_the_same_tokens_in_any_company_and_another_seed_others():
    alone = request_of(PROMPTS[3], seed=2**63 + 5)
    serve([alone], rule="1")
    for number, (layout, draft) in enumerate(
        [(KvLayoutName.SLOTS, "other"), (KvLayoutName.PADDED, "fallible")]
    ):
        again = replace(alone, tokens=[], end=None)
        company = [request_of(prompt, number) for prompt in PROMPTS[: 3 + number]]
        serve([*company, again], draft, seed=number, layout=layout, rule=str(3 + number))
        assert again.tokens == alone.tokens
    other = request_of(PROMPTS[3], seed=5)
    serve([other])
    assert other.tokens != alone.tokens


def test_nothing_follows_a_stop_token_that_was_drafted_and_accepted():
    """Every place of a block, the last draft and the bonus token among them."""
    endless = request_of(PROMPTS[4])
    truth = truth_of(endless)
    for place in range(6):
        stop = truth[place]
        request = replace(endless, stops=(stop,), tokens=[], end=None)
        serve([request], right(endless))
        assert tuple(request.tokens) == truth[: truth.index(stop) + 1]
        assert request.end.finish_reason is FinishReason.STOP_TOKEN
        assert request.end.usage.num_generated_tokens == len(request.tokens)


def test_a_stop_token_that_was_drafted_and_rejected_ends_nothing():
    request = request_of(PROMPTS[5])
    unused = next(token for token in range(VOCAB_SIZE) if token not in truth_of(request))
    request.stops = (unused,)
    truth = right(request)
    (stats,) = serve([request], lambda log, number: [*truth(log, 1), unused, *truth(log, number)])
    check(request)
    assert len(request.tokens) == MAX_TOKENS
    assert stats.num_accepted_tokens > 0


def test_padding_is_never_taken_for_a_token(layout):
    """Prompts and drafts of the id that models pad with, in rows of very different length."""
    requests = [request_of((PAD,) * length, seed=length) for length in (1, 2, 17, 40)]
    stats = serve(requests, lambda _log, number: [PAD] * number, layout=layout)
    check(*requests)
    for request, one in zip(requests, stats, strict=True):
        assert one.num_draft_tokens > 0
        assert one.num_accepted_tokens <= request.tokens.count(PAD)


@pytest.mark.parametrize("rules", [{"temperature": 0.3}, {}, {"temperature": 5.0}, {"top_p": 0.5}])
def test_a_draft_that_is_the_target_is_always_accepted(rules):
    requests = [request_of(prompt, seed, **rules) for seed, prompt in enumerate(PROMPTS[:6])]
    for stats in serve(requests):
        assert stats.num_accepted_tokens == stats.num_draft_tokens > 0
    check(*requests)


def test_the_first_draft_is_judged_by_what_follows_the_last_committed_token():
    """If it is wrong nothing after it counts, however right; if it is right it is accepted."""
    request = request_of(PROMPTS[6])
    truth, others = right(request), wrong(request)
    again = replace(request, tokens=[])
    (stats,) = serve([request], lambda log, k: [*others(log, 1), *truth(log, k)[1:]])
    assert (stats.num_accepted_tokens, stats.num_rounds) == (0, MAX_TOKENS)
    (stats,) = serve([again], lambda log, k: [*truth(log, 1), *others(log, k)[1:]])
    assert stats.num_accepted_per_position[0] == stats.num_drafts_per_position[0] > 0
    assert not any(stats.num_accepted_per_position[1:])
    check(request, again)
