"""What a newer client asks for is refused by name, wherever in its request it is."""

from __future__ import annotations

import pytest

from exspec.core.errors import InvalidRequestError
from exspec.v1 import common_pb2
from exspec.v1 import generation_pb2 as pb
from exspec.wire import convert_generation as convert

FIELD_77 = b"\xe8\x04\x01"
"""Field number 77, the number 1."""


def _with_field_77(message):
    return type(message).FromString(message.SerializeToString() + FIELD_77)


def _request(**fields) -> pb.GenerateRequest:
    return pb.GenerateRequest(**{"prompt": pb.Prompt(text="x"), **fields})


@pytest.mark.parametrize(
    ("message", "path", "name"),
    [
        (_with_field_77(_request()), "", "GenerateRequest"),
        (_request(sampling=_with_field_77(pb.SamplingParams())), "sampling", "SamplingParams"),
        (
            _request(speculation=_with_field_77(pb.SpeculationParams())),
            "speculation",
            "SpeculationParams",
        ),
        (_request(prompt=_with_field_77(pb.Prompt(text="x"))), "prompt", "Prompt"),
        (_request(resume=_with_field_77(pb.Resume())), "resume", "Resume"),
        (
            _request(
                sampling=pb.SamplingParams(structured=_with_field_77(common_pb2.Grammar(kind=1)))
            ),
            "sampling.structured",
            "Grammar",
        ),
        (
            _request(
                sampling=pb.SamplingParams(
                    logit_bias=[common_pb2.TokenValue(), _with_field_77(common_pb2.TokenValue())]
                )
            ),
            "sampling.logit_bias",
            "TokenValue",
        ),
    ],
)
def test_a_field_that_is_not_known_is_refused(message, path, name):
    with pytest.raises(InvalidRequestError, match=f"{name}.* field number 77") as caught:
        convert.request_from_message(message)
    assert caught.value.field == path


def test_a_field_of_a_batch_that_is_not_known_is_refused():
    with pytest.raises(InvalidRequestError, match="GenerateBatchRequest has a field number 77"):
        convert.check_batch(_with_field_77(pb.GenerateBatchRequest(prompts=[pb.Prompt(text="x")])))


def test_a_field_of_one_prompt_that_is_not_known_touches_no_other():
    odd = _with_field_77(pb.Prompt(text="x"))
    batch = pb.GenerateBatchRequest(prompts=[pb.Prompt(text="x"), odd])
    convert.check_batch(batch)
    convert.request_from_message(convert.batch_item(batch, 0))
    with pytest.raises(InvalidRequestError, match="Prompt"):
        convert.request_from_message(convert.batch_item(batch, 1))
