"""Workers that are late, absent, dying, lying or hanging: the request ends right all the same."""

from __future__ import annotations

import asyncio

import pytest
from coordinator_world import World, check, request, under_way, world
from fake_worker import held

from exspec.core import errors
from exspec.core.cluster import WorkerState
from exspec.core.ids import Role

LONG = 120


async def _asked(made: World, max_tokens: int = LONG) -> asyncio.Task:
    return await under_way(made, request(max_tokens=max_tokens))


# Draft workers


async def test_without_a_draft_worker_it_is_plain_decoding():
    async with world() as made:
        await made.target()
        answer = await made.generate()
    check(answer)
    assert answer.completed.speculation.num_draft_tokens == 0


async def test_a_draft_worker_that_joins_late_is_used_by_running_requests():
    async with world() as made:
        await made.target(capacity=4000)
        asking = await _asked(made, 3000)
        await made.draft(capacity=4000)
        answer = await asking
    check(answer, max_tokens=3000)
    assert answer.completed.speculation.num_draft_tokens > 0


async def test_a_draft_worker_that_dies_in_a_round_costs_its_drafts_only():
    async with world() as made:
        made.patience.hold()
        await made.target()
        draft = await made.draft()
        asking = await _asked(made)
        await held(draft)
        await made.forget(draft)
        check(await asking, max_tokens=LONG)
        assert made.parts.view.status().totals.num_draft_failures == 1


async def test_another_draft_worker_takes_over():
    async with world() as made:
        made.patience.hold()
        await made.target()
        first = await made.draft("first")
        second = await made.draft("second")
        asking = await _asked(made)
        await held(first)
        await made.forget(first)
        check(await asking, max_tokens=LONG)
        assert second.runner.passes


def _wrong_keys(reply):
    for result in reply.results:
        result.key.sequence_id = "another"
    return reply


def _too_few(reply):
    del reply.results[:]
    return reply


def _too_many_drafts(reply):
    for result in reply.results:
        result.draft_tokens.extend([7] * 70)
    return reply


def _no_status(reply):
    for result in reply.results:
        result.status = 0
    return reply


def _drafts_without_success(reply):
    for result in reply.results:
        result.status = 6
    return reply


def _impossible_length(reply):
    for result in reply.results:
        result.kv_length = 4_000_000
    return reply


def _lacks_what_it_does_not(reply):
    for result in reply.results:
        result.status = 2
        result.kv_length = 1000
        if hasattr(result, "draft_tokens"):
            del result.draft_tokens[:]
    return reply


def _another_batch(reply):
    reply.batch_id += 1000
    return reply


ANY_LIE = [_wrong_keys, _too_few, _no_status, _impossible_length, _another_batch]
DRAFT_LIES = [*ANY_LIE, _too_many_drafts, _drafts_without_success, _lacks_what_it_does_not]


def _when_it_works(lie):
    """Handshakes and releases are answered well."""
    return lambda reply: lie(reply) if reply.results else reply


@pytest.mark.parametrize("lie", DRAFT_LIES)
async def test_a_draft_worker_that_answers_garbage_is_left_out(lie):
    async with world() as made:
        await made.target()
        draft = await made.draft()
        draft.tamper = _when_it_works(lie)
        answers = await asyncio.gather(made.generate(), made.generate((7,)))
        check(answers[0])
        check(answers[1], (7,))
        assert answers[0].completed.speculation.num_draft_tokens == 0
        assert made.parts.view.status().totals.num_draft_failures > 0


@pytest.mark.parametrize("status", [2, 3, 4, 5, 6])
async def test_a_draft_worker_that_always_declines_costs_nothing_but_its_drafts(status):
    def decline(reply):
        for result in reply.results:
            result.status = status
            result.kv_length = 0
            del result.draft_tokens[:]
        return reply

    async with world() as made:
        await made.target()
        draft = await made.draft()
        draft.tamper = decline
        check(await made.generate())


async def test_a_draft_worker_that_hangs_is_left_out_after_its_time():
    async with world(draft_timeout_seconds=0.1) as made:
        made.patience.hold()
        await made.target()
        draft = await made.draft()
        asking = await _asked(made)
        await held(draft)
        check(await asking, max_tokens=LONG)
        draft.runner.gate.set()
        await made.until_state(draft, WorkerState.READY)
        answer = await made.generate()
        check(answer)
        assert answer.completed.speculation.num_draft_tokens > 0


# Targets


async def test_a_target_that_dies_in_a_round_is_replaced_by_another():
    async with world() as made:
        first = await made.target("first")
        await made.draft()
        asking = await _asked(made)
        second = await made.target("second")
        await held(first)
        await made.forget(first)
        check(await asking, max_tokens=LONG)
        assert second.runner.passes


async def test_killing_one_target_after_another_changes_nothing():
    async with world() as made:
        current = await made.target("t0", capacity=4000)
        await made.draft(capacity=4000)
        asking = await _asked(made, 3000)
        for i in range(1, 6):
            following = await made.target(f"t{i}", capacity=4000)
            await held(current)
            await made.forget(current)
            current = following
        check(await asking, max_tokens=3000)


async def test_when_no_target_is_left_the_wait_is_bounded_and_says_what_was_delivered():
    async with world(unavailable_seconds=0.2) as made:
        target = await made.target()
        await made.draft()
        asking = await _asked(made)
        await held(target)
        await made.forget(target)
        answer = await asking
        assert isinstance(answer.error, errors.UnavailableError)
        assert f"{len(answer.tokens)} tokens" in answer.error.message
        assert answer.error.request_id == answer.started.request_id
        assert len(answer.tokens) > 0


async def test_a_target_that_comes_back_in_time_finishes_the_request():
    async with world() as made:
        first = await made.target("first")
        asking = await _asked(made)
        await held(first)
        await made.forget(first)
        await made.target("second")
        check(await asking, max_tokens=LONG)


async def test_a_request_that_fits_no_target_left_is_given_up_too():
    """It waits for a target as long as its own, not for any."""
    async with world(unavailable_seconds=0.2) as made:
        long = await made.target("long", capacity=4000)
        asking = await _asked(made, 3000)
        await made.target("short", capacity=64)
        await held(long)
        await made.forget(long)
        answer = await asking
        assert isinstance(answer.error, errors.UnavailableError)
        check(await made.generate())


def _too_many_accepted(reply):
    for result in reply.results:
        if result.status == 1:
            result.num_accepted += 9
            result.kv_length += 9
    return reply


def _no_bonus(reply):
    for result in reply.results:
        result.ClearField("bonus_token")
    return reply


def _one_of_two_impossible(reply):
    """A good row before a bad one: nothing of the batch may be taken."""
    if len(reply.results) > 1:
        result = reply.results[-1]
        result.status, result.kv_length = 2, 4_000_000
        result.ClearField("bonus_token")
        result.num_accepted = 0
    return reply


TARGET_LIES = [*ANY_LIE, _too_many_accepted, _no_bonus, _lacks_what_it_does_not]


@pytest.mark.parametrize("lie", [*TARGET_LIES, _one_of_two_impossible])
async def test_a_target_that_answers_garbage_loses_its_rows_to_another(lie):
    async with world() as made:
        liar = await made.target("liar")
        await made.draft()
        lies = 0

        def lie_once(reply):
            nonlocal lies
            if lies or not reply.results or len(liar.runner.passes) < 4:
                return reply
            if lie is _one_of_two_impossible and len(reply.results) < 2:
                return reply
            lies += 1
            return lie(reply)

        liar.tamper = lie_once
        answers = await asyncio.gather(
            made.generate(max_tokens=LONG), made.generate((7,), LONG), made.generate((8,), LONG)
        )
        for prompt, answer in zip([(11, 0, 2), (7,), (8,)], answers, strict=True):
            check(answer, prompt, LONG)
        assert lies == 1


async def test_a_failing_pass_is_tried_again():
    async with world() as made:
        target = await made.target()
        await made.draft()
        target.runner.failures.extend([RuntimeError("x"), ValueError("y")])
        check(await made.generate())


async def test_passes_that_always_fail_are_given_up():
    async with world() as made:
        target = await made.target()
        target.runner.failures.extend([RuntimeError("x")] * 5)
        answer = await made.generate()
        assert isinstance(answer.error, errors.PeerError)
        assert len(target.runner.failures) == 0
        check(await made.generate())
        assert made.parts.view.status().totals.num_failed_requests == 1


async def test_a_request_that_takes_every_target_down_is_given_up():
    async with world() as made:
        target = await made.target()

        def poisoned(reply):
            return _wrong_keys(reply) if reply.results else reply

        target.tamper = poisoned
        answer = await made.generate()
        assert isinstance(answer.error, errors.PeerError)
        target.tamper = lambda reply: reply
        await made.until_state(target, WorkerState.READY)
        check(await made.generate())


async def test_a_target_that_hangs_is_left_out_after_its_time():
    async with world(target_timeout_seconds=0.2) as made:
        first = await made.target("first")
        await made.draft()
        asking = await _asked(made)
        await made.target("second")
        await held(first)
        check(await asking, max_tokens=LONG)
        first.runner.gate.set()


async def test_a_target_without_a_slot_after_all_is_avoided():
    async with world() as made:
        liar = made.new(Role.TARGET, "liar", num_slots=1)
        liar.num_slots = 4
        await made.start(liar)
        await made.until_state(liar, WorkerState.READY)
        answers = await asyncio.gather(*(made.generate((i + 5,)) for i in range(4)))
        for i, answer in enumerate(answers):
            check(answer, (i + 5,))


# Connections


@pytest.mark.parametrize("which", ["target", "draft"])
async def test_after_a_broken_stream_the_same_process_starts_empty(which):
    async with world() as made:
        workers = {"target": await made.target(), "draft": await made.draft()}
        asking = await _asked(made)
        await workers[which].break_stream()
        check(await asking, max_tokens=LONG)
        await made.until_state(workers[which], WorkerState.READY)
        check(await made.generate())


async def test_a_client_that_leaves_while_the_stream_is_broken_leaves_nothing():
    async with world() as made:
        target = await made.target(num_slots=2)
        asking = await _asked(made)
        await held(target)
        assert target._server is not None
        await target._server.stop(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        target.runner.gate.set()
        await made.bell.until(lambda: not len(made.driver.ledger))
        await target.listen(int(target.address.rpartition(":")[2]))
        await made.settle()
        answers = await asyncio.gather(*(made.generate((i + 5,)) for i in range(4)))
        for i, answer in enumerate(answers):
            check(answer, (i + 5,))


class _Refusals:
    """Falsifies a target's replies: no slot for anybody, until told otherwise."""

    def __init__(self) -> None:
        self.is_on = True
        self.num_batches = 0

    def __call__(self, reply):
        if reply.results and self.is_on:
            self.num_batches += 1
            for result in reply.results:
                result.status, result.kv_length, result.num_accepted = 4, 0, 0
                result.ClearField("bonus_token")
        return reply


async def test_a_target_without_room_for_anybody_is_asked_now_and_then_and_the_wait_is_bounded():
    async with world(unavailable_seconds=0.4) as made:
        target = await made.target()
        target.tamper = refusals = _Refusals()
        answer = await made.generate()
        assert isinstance(answer.error, errors.UnavailableError)
        assert "has room for 23 tokens" in answer.error.message
        assert 1 <= refusals.num_batches < 20  # thousands in a hot loop


async def test_requests_wait_for_a_target_that_has_room_again():
    async with world() as made:
        target = await made.target()
        target.tamper = refusals = _Refusals()
        asking = [asyncio.create_task(made.generate((i + 5,))) for i in range(3)]
        await made.bell.until(lambda: refusals.num_batches >= 3)
        refusals.is_on = False
        for i, task in enumerate(asking):
            check(await task, (i + 5,))


async def test_requests_go_to_another_target_when_one_has_no_room_for_anybody():
    async with world() as made:
        full = await made.target("full")
        full.tamper = _Refusals()
        await made.target("other", num_slots=2)
        answers = await asyncio.gather(*(made.generate((i + 5,)) for i in range(6)))
        for i, answer in enumerate(answers):
            check(answer, (i + 5,))
