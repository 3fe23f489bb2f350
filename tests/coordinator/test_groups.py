"""What the scheduler hears of a request's turn: its priority, and the batch it came with."""

from __future__ import annotations

from coordinator_world import world

from coordinator.scheduler.events import SequenceArrived
from exspec.v1 import generation_pb2


def _prompts(number):
    return [
        generation_pb2.Prompt(token_ids=generation_pb2.TokenIds(ids=[11, index]))
        for index in range(number)
    ]


async def _arrivals(made, *requests):
    """Send batches and single requests; what arrived, in order."""
    arrived = []
    handle = made.driver._handle

    def seen(event):
        if isinstance(event, SequenceArrived):
            arrived.append(event)
        return handle(event)

    made.driver._handle = seen
    for request in requests:
        is_batch = isinstance(request, generation_pb2.GenerateBatchRequest)
        async for _ in (made.stub.GenerateBatch if is_batch else made.stub.Generate)(request):
            pass
    return arrived


SAMPLING = generation_pb2.SamplingParams(max_tokens=2)


async def test_prompts_of_one_batch_are_one_group_of_its_priority():
    async with world() as made:
        await made.target()
        arrived = await _arrivals(
            made,
            generation_pb2.GenerateBatchRequest(
                request_id="b", prompts=_prompts(2), sampling=SAMPLING, priority=3
            ),
            generation_pb2.GenerateBatchRequest(prompts=_prompts(2), sampling=SAMPLING),
            generation_pb2.GenerateBatchRequest(prompts=_prompts(1), sampling=SAMPLING),
            generation_pb2.GenerateRequest(
                request_id="one", prompt=_prompts(1)[0], sampling=SAMPLING, priority=-4
            ),
        )
    assert [event.priority for event in arrived] == [3, 3, 0, 0, 0, -4]
    groups = [event.group for event in arrived]
    assert groups[:2] == ["b", "b"]
    assert groups[2] == groups[3] != groups[4]
    assert all(groups[2:5])
    assert groups[5] == ""
