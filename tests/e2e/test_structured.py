"""Structured output through real processes: it parses, and speculation does not change it."""

from __future__ import annotations

import json
import re

import grpc
import pytest

import exspec
from exspec.core.acceptance import FinishReason
from exspec.v1 import common_pb2, generation_pb2, generation_pb2_grpc

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", True, None]}, "n": {"type": "integer", "minimum": 0}},
    "required": ["a"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
REGEX = r"[a-f]{2,6}(-[0-9]{1,3})?"
LARK = 'start: e\ne: t ("+" t){0,3}\nt: /[0-9]{1,3}/'
ASKED = (
    {"json_schema": SCHEMA},
    {"json_schema": SCHEMA, "temperature": 1.0, "seed": 1},
    {"regex": REGEX, "temperature": 2.0, "seed": 2},
    {"grammar": LARK, "repetition_penalty": 1.1},
    {"temperature": 1.0, "seed": 3},
)


def _fits(asked: dict, text: str) -> bool:
    if "regex" in asked:
        return bool(re.fullmatch(REGEX, text))
    if "grammar" in asked:
        return bool(re.fullmatch(r"[0-9]{1,3}(\+[0-9]{1,3}){0,3}", text))
    value = json.loads(text)
    return {"a"} <= set(value) <= {"a", "n"} and value["a"] in ("x", True, None)


@pytest.mark.parametrize("asked", ASKED)
def test_texts_match_and_are_the_same_with_and_without_drafts(client, asked):
    results = {
        k: client.generate("Say it", max_tokens=48, num_speculative_tokens=k, **asked)
        for k in (0, 1, 5)
    }
    assert len({result.token_ids for result in results.values()}) == 1
    if asked.keys() & {"json_schema", "regex", "grammar"}:
        assert results[0].finish_reason is FinishReason.STOP_TOKEN
        assert _fits(asked, results[0].text)


def test_a_stop_string_ends_a_structured_text_before_it(client):
    whole = client.generate("Say it", max_tokens=48, grammar='start: "abc" /[x-z]{3}/ "def"')
    cut = client.generate(
        "Say it", max_tokens=48, grammar='start: "abc" /[x-z]{3}/ "def"', stop=["cx", "cy", "cz"]
    )
    assert re.fullmatch("abc[x-z]{3}def", whole.text)
    assert whole.finish_reason is FinishReason.STOP_TOKEN
    assert (cut.text, cut.finish_reason) == ("ab", FinishReason.STOP_STRING)


def test_grammars_that_leave_nothing_end_their_request_and_no_other(client):
    results = client.generate_batch(
        ["One", "Two"], max_tokens=20, regex="ab", min_tokens=9, temperature=1.0, seed=1
    )
    for result in results:
        assert isinstance(result, exspec.InvalidRequestError)
        assert "min_tokens" in result.message
    with pytest.raises(exspec.InvalidRequestError, match="not") as caught:
        client.generate("Say it", json_schema={"not": {}})
    assert caught.value.field == "structured"
    assert client.generate("Say it", regex="ab").text == "ab"


def test_a_text_begun_elsewhere_that_is_not_of_the_grammar_cannot_be_resumed(noise_cluster):
    grammar = common_pb2.Grammar(kind=common_pb2.GRAMMAR_KIND_REGEX, text="a[xy]{8}")
    asked = generation_pb2.GenerateRequest(
        prompt=generation_pb2.Prompt(text="Say it"),
        sampling=generation_pb2.SamplingParams(max_tokens=20, structured=grammar),
    )
    with grpc.insecure_channel(noise_cluster.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        started, *events = stub.Generate(asked)
        whole = [token for event in events for token in event.delta.token_ids]

        def rest_after(token_ids):
            asked.resume.CopyFrom(
                generation_pb2.Resume(
                    token_ids=token_ids, model_fingerprint=started.started.model_fingerprint
                )
            )
            return [token for event in stub.Generate(asked) for token in event.delta.token_ids]

        assert rest_after(whole[:3]) == whole[3:]
        with pytest.raises(grpc.RpcError) as caught:
            rest_after([*whole[:3], whole[0]])
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "index 3" in caught.value.details()
