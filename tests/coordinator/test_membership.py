"""Who may join, who is lost, who leaves, and what happens to the rows."""

from __future__ import annotations

import asyncio

import pytest
from coordinator_world import check, other_facts, renamed, request, world
from toy import draft_language, noise_language

from exspec.core import errors
from exspec.core.cluster import WorkerState
from exspec.core.ids import Role, WorkerId
from exspec.core.models import TokenizerAssets


async def _running(made, max_tokens: int = 1500, num_events: int = 3):
    seen = asyncio.Event()
    counted = iter(range(num_events))
    asking = asyncio.create_task(
        made.ask(request(max_tokens=max_tokens), lambda: next(counted, None) or seen.set())
    )
    await seen.wait()
    return asking


OTHER_TOKENIZER = other_facts(name="other", tokenizer_sha256="b" * 64, tokenizer_size=12)


async def test_a_draft_with_another_tokenizer_is_refused_naming_both():
    async with world() as made:
        await made.target()
        draft = made.new(Role.DRAFT, "draft", model=OTHER_TOKENIZER)
        keeping = await made.start(draft)
        with pytest.raises(errors.IncompatibleWorkerError) as caught:
            await keeping
        for part in ("'other'", "'toy'", "bbbb", "aaaa", "12", "97"):
            assert part in caught.value.message
        assert made.state(draft) is WorkerState.REFUSED
        assert "'other'" in made.reason(draft)
        check(await made.generate())


async def test_a_draft_that_came_before_the_target_is_refused_when_the_target_comes():
    async with world(lease_seconds=0.5) as made:
        draft = made.new(Role.DRAFT, "draft", model=OTHER_TOKENIZER)
        keeping = await made.start(draft)
        await made.until_state(draft, WorkerState.JOINING)
        assert made.reason(draft) == "waits for a target"
        await made.target()
        with pytest.raises(errors.IncompatibleWorkerError, match=r"'other'.*'toy'"):
            await asyncio.wait_for(keeping, 5)
        assert made.state(draft) is WorkerState.REFUSED
        check(await made.generate())


@pytest.mark.parametrize(
    "model",
    [
        other_facts(name="padded", vocab_size=120),
        other_facts(name="ngram", vocab_size=0, tokenizer_size=0, tokenizer_sha256=""),
    ],
)
async def test_a_padded_vocabulary_or_none_at_all_fits(model):
    async with world() as made:
        draft = made.new(Role.DRAFT, "draft", model=model)
        await made.start(draft)
        await made.target()
        await made.until_state(draft, WorkerState.READY)
        answer = await made.generate()
        check(answer)
        assert answer.completed.speculation.num_draft_tokens > 0


async def test_a_target_of_a_served_name_with_another_model_is_refused_naming_both():
    async with world() as made:
        await made.target()
        second = made.new(Role.TARGET, "second", model=other_facts(fingerprint="9" * 16))
        keeping = await made.start(second)
        with pytest.raises(errors.IncompatibleWorkerError, match=r"'toy'.*9999.*'toy'.*ffff"):
            await keeping
        assert made.state(second) is WorkerState.REFUSED
        check(await made.generate())


async def test_a_target_that_was_never_reached_does_not_define_the_cluster():
    async with world() as made:
        ghost = made.new(Role.TARGET, "ghost", model=other_facts(fingerprint="9" * 16))
        ghost.address = "127.0.0.1:1"
        await made.register(ghost)
        await made.bell.until(lambda: made.state(ghost) is WorkerState.JOINING)
        made.parts.registry._members[WorkerId("ghost")].last_heartbeat -= 100
        await made.until_state(ghost, WorkerState.LOST)
        await made.target()
        check(await made.generate())


async def test_a_target_that_never_answers_keeps_nobody_out():
    async with world() as made:
        ghost = made.new(Role.TARGET, "ghost", model=OTHER_TOKENIZER)
        ghost.address = "127.0.0.1:1"
        await made.register(ghost)
        draft = made.new(Role.DRAFT, "draft")
        await made.start(draft)
        await made.until_state(draft, WorkerState.JOINING)
        await made.target()
        await made.until_state(draft, WorkerState.READY)
        made.workers.remove(ghost)
        check(await made.generate())


async def test_a_stranger_at_a_workers_address_serves_nothing():
    async with world(lease_seconds=30, unavailable_seconds=0.5) as made:
        target = await made.target()
        await target.kill()
        # Another program, with another model, that never registered here.
        stranger = made.new(Role.TARGET, "stranger", language=draft_language)
        await stranger.listen(int(target.address.rpartition(":")[2]))
        answer = await made.generate()
        assert isinstance(answer.error, errors.UnavailableError)
        assert answer.tokens == ()
        assert stranger.runner.passes == []
        made.workers.remove(target)


async def test_why_a_worker_cannot_be_reached_is_shown():
    async with world() as made:
        worker = made.new(Role.TARGET, "far")
        worker.address = "127.0.0.1:1"
        await made.register(worker)
        await made.eventually(lambda: made.reason(worker))
        assert "127.0.0.1:1" in made.reason(worker)
        assert made.state(worker) is WorkerState.JOINING


async def test_a_new_incarnation_replaces_the_old_one():
    async with world() as made:
        old = await made.target("target", capacity=4000)
        await made.draft(capacity=4000)
        asking = await _running(made)
        new = made.new(Role.TARGET, "target", capacity=4000)
        renamed(new, "target-2")
        await old.hush()
        await made.start(new)
        await made.until_state(new, WorkerState.READY)
        assert made.state(old) is None
        check(await asking, max_tokens=1500)
        assert new.runner.passes
        assert old.sessions.num_sequences == 0


async def test_a_worker_that_falls_silent_is_lost_and_one_that_comes_back_is_taken():
    async with world(lease_seconds=0.6) as made:
        silent = await made.target("silent", capacity=4000)
        asking = await _running(made)
        await made.target("other", capacity=4000)
        await silent.hush()
        await made.until_state(silent, WorkerState.LOST)
        assert made.reason(silent) == "its lease ran out"
        check(await asking, max_tokens=1500)
        # The same process, the same incarnation: what the old link left behind is gone.
        silent.register(made.address)
        await made.until_state(silent, WorkerState.READY)
        check(await made.generate())


@pytest.mark.parametrize("role", [Role.TARGET, Role.DRAFT])
async def test_draining_moves_rows_and_then_lets_go(role):
    async with world() as made:
        targets = [await made.target("t1", capacity=4000)]
        drafts = [await made.draft("d1", capacity=4000)]
        asking = [await _running(made) for _ in range(3)]
        targets.append(await made.target("t2", capacity=4000))
        drafts.append(await made.draft("d2", capacity=4000))
        leaving = (targets if role is Role.TARGET else drafts)[0]
        made.workers.remove(leaving)
        await leaving.leave()
        assert made.state(leaving) is WorkerState.LOST
        assert made.reason(leaving) == "left"
        for answer in await asyncio.gather(*asking):
            check(answer, max_tokens=1500)
            assert answer.completed.speculation.num_draft_tokens > 0


async def test_the_last_target_can_leave_and_another_goes_on():
    async with world() as made:
        first = await made.target("first", capacity=4000)
        asking = await _running(made)
        made.workers.remove(first)
        await first.leave()
        assert not made.parts.pools.has_target
        await made.target("second", capacity=4000)
        check(await asking, max_tokens=1500)


async def test_strangers_are_told_so():
    from exspec.v1 import registry_pb2

    async with world() as made:
        worker = await made.target()
        for incarnation in ("stale", ""):
            asked = registry_pb2.HeartbeatRequest(worker_id="target", incarnation=incarnation)
            assert not (await made.registry.Heartbeat(asked)).is_known
        drained = registry_pb2.DrainRequest(worker_id="target", incarnation="stale")
        assert (await made.registry.Drain(drained)).num_moved_sequences == 0
        assert made.state(worker) is WorkerState.READY


async def test_a_coordinator_that_was_killed_leaves_no_slots_taken():
    """Its successor finds the workers as empty as it takes them to be."""
    async with world() as first:
        target = await first.target(num_slots=2, capacity=4000)
        draft = await first.draft(num_slots=2, capacity=4000)
        asking = [await _running(first, 3000) for _ in range(2)]
        first.workers.clear()
        await target.hush()
        await draft.hush()
        async with world() as second:
            for task in asking:
                task.cancel()
            await first.parts.registry.close()  # its streams break, nothing is released
            second.workers.extend([target, draft])
            for worker in (target, draft):
                worker.runner.on_release = second.bell.ring
                worker.register(second.address)
                await second.until_state(worker, WorkerState.READY)
            answers = await asyncio.gather(*(second.generate((i + 5,)) for i in range(4)))
            for i, answer in enumerate(answers):
                check(answer, (i + 5,))
        await asyncio.gather(*asking, return_exceptions=True)


async def test_the_status_adds_up():
    async with world() as made:
        assert made.parts.view.status().model == ""
        assert not made.parts.view.status().is_ready
        await made.target()
        await made.draft()
        answer = await made.generate()
        status = made.parts.view.status()
        assert (status.model, status.is_ready, status.policy) == ("toy", True, "exspec")
        assert [w.state for w in status.workers] == [WorkerState.READY] * 2
        totals, stats = status.totals, answer.completed.speculation
        assert totals.num_rounds == totals.num_row_rounds == stats.num_rounds
        assert totals.num_draft_tokens == stats.num_draft_tokens
        assert totals.num_accepted_tokens == stats.num_accepted_tokens
        assert totals.num_generated_tokens == 20
        assert totals.num_prompt_tokens == 3
        assert totals.round_seconds > 0
        timings = answer.completed.timings
        assert 0 <= timings.queue_seconds <= timings.time_to_first_token_seconds
        assert timings.time_to_first_token_seconds <= timings.total_seconds


@pytest.mark.parametrize("text", ["auto:6", "4", "[[1,2,4],[3,8,1]]", "0"])
async def test_the_status_shows_the_rule_and_the_window(text):
    async with world(num_speculative_tokens=text, batch_size=3, window_size=7) as made:
        await made.target()
        await made.draft()
        check(await made.generate())
        status = made.parts.view.status()
        assert (status.speculation, status.window_size) == (text, 7)
        if text.startswith("auto"):
            return
        assert (status.predicted_speedup, status.measured_speedup) == (0, 0)
        totals = status.totals
        assert (totals.num_plain_row_rounds == totals.num_row_rounds) is (text == "0")


async def test_the_status_shows_what_speculation_brings_once_it_is_known():
    """The draft is always wrong, so plain decoding is tried too, and compared with."""
    async with world(num_speculative_tokens="auto") as made:
        await made.target(capacity=10_000)
        await made.draft(capacity=10_000, language=noise_language)
        status = made.parts.view.status()
        assert (status.speculation, status.window_size) == ("auto", 32)
        assert (status.predicted_speedup, status.measured_speedup) == (0, 0)
        asking = asyncio.create_task(made.ask(request(max_tokens=9000)))
        await made.bell.until(lambda: made.parts.view.status().measured_speedup > 0)
        assert made.parts.view.status().predicted_speedup > 0
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_broken_chat_template_does_not_keep_a_target_out():
    async with world() as made:
        await made.target(tokenizer=TokenizerAssets("", "{% if %}"))
        check(await made.generate())
