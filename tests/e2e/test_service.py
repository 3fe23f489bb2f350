"""Three real processes: what clients see is plain decoding, and bad input harms nobody."""

from __future__ import annotations

import pytest

import exspec
from exspec import Client
from exspec.core.acceptance import FinishReason
from exspec.wire.health import probe
from tests.e2e.conftest import STOP_IDS, plan

PROMPTS = ("a", "The quick brown fox", "Zwölf Boxkämpfer 🦊 jagen", "x" * 90, "1 2 3 1 2 3 1 2")


@pytest.mark.parametrize("num_speculative_tokens", [0, 1, 5, 8])
def test_tokens_are_those_of_plain_decoding(client, plain, num_speculative_tokens):
    results = client.generate_batch(
        PROMPTS, max_tokens=24, num_speculative_tokens=num_speculative_tokens
    )
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert result.token_ids == plain(client.tokenize(prompt).token_ids, 24)


@pytest.mark.parametrize(
    ("layout", "draft"),
    [("padded", "same"), ("slots", "same"), ("slots", "beside"), ("slots", "ngram")],
)
def test_every_layout_and_kind_of_draft(make_cluster, target_dir, noise_dir, plain, layout, draft):
    draft_model = {"same": target_dir, "beside": noise_dir, "ngram": "ngram"}[draft]
    lookup = "off" if draft == "same" else None
    cluster = make_cluster(plan(target_dir, draft_model, kv_layout=layout, lookup=lookup))
    with Client(cluster.address) as client:
        results = client.generate_batch(PROMPTS, max_tokens=30, ignore_eos=True)
        for prompt, result in zip(PROMPTS, results, strict=True):
            assert result.token_ids == plain(client.tokenize(prompt).token_ids, 30, ())
            stats = result.speculation
            if draft == "same":  # every round brings its drafts, and one token of its own
                assert stats.num_accepted_tokens == stats.num_draft_tokens > 0
                assert stats.num_rounds + stats.num_accepted_tokens == 30
            if draft != "beside":
                assert stats.num_looked_up_tokens in (0, stats.num_draft_tokens)
        totals = client.cluster_status().totals
        assert (totals.num_looked_up_tokens > 0) is (draft != "same")
        assert (totals.num_model_tokens > 0) is (draft != "ngram")
        sums = [result.speculation.num_looked_up_tokens for result in results]
        assert totals.num_looked_up_tokens == sum(sums)


def test_a_draft_with_some_rows_of_its_head_changes_nothing(make_cluster, target_dir, plain):
    """The target itself drafts, among half of its tokens: right at times, never more than that."""
    cluster = make_cluster(plan(target_dir, target_dir, draft_vocab="128"))
    with Client(cluster.address) as client:
        results = client.generate_batch(PROMPTS, max_tokens=30, ignore_eos=True)
        for prompt, result in zip(PROMPTS, results, strict=True):
            assert result.token_ids == plain(client.tokenize(prompt).token_ids, 30, ())
        accepted = sum(result.speculation.num_accepted_tokens for result in results)
        assert 0 < accepted < sum(result.speculation.num_draft_tokens for result in results)


def test_no_draft_worker_at_all(make_cluster, target_dir, plain):
    cluster = make_cluster(plan(target_dir, "none"))
    with Client(cluster.address) as client:
        result = client.generate("hello", max_tokens=12)
        assert result.token_ids == plain(client.tokenize("hello").token_ids, 12)
        assert result.speculation.num_draft_tokens == 0


def test_prompts_of_pad_and_eos_ids_are_ordinary(client, plain):
    for prompt in ((0,), (0, 0, 0, 1), (1, 0) * 10):
        result = client.generate(prompt, max_tokens=10, ignore_eos=True)
        assert result.token_ids == plain(prompt, 10, ())


def test_a_long_prompt_goes_in_chunks_beside_short_ones(make_cluster, target_dir, noise_dir, plain):
    cluster = make_cluster(
        plan(target_dir, noise_dir, coordinator_flags=("--max-prefill-tokens", "16"))
    )
    with Client(cluster.address) as client:
        prompts = ("y" * 150, "z", "yz" * 40)
        for prompt, result in zip(
            prompts, client.generate_batch(prompts, max_tokens=12), strict=True
        ):
            assert result.token_ids == plain(client.tokenize(prompt).token_ids, 12)


def test_more_requests_than_places_are_refilled(client, plain):
    prompts = [f"prompt number {index}" for index in range(13)]
    for prompt, result in zip(prompts, client.generate_batch(prompts, max_tokens=9), strict=True):
        assert result.token_ids == plain(client.tokenize(prompt).token_ids, 9)


def test_streamed_pieces_are_the_text(client):
    with client.stream("Stream this, please", max_tokens=20, ignore_eos=True) as stream:
        pieces = list(stream.text_deltas())
        final = stream.final()
    assert "".join(pieces) == final.text == client.detokenize(final.token_ids)


def test_a_stop_string_ends_the_text_before_it(client):
    whole = client.generate("stop strings", max_tokens=30, ignore_eos=True)
    middle = len(whole.text) // 2
    stop = whole.text[middle : middle + 3]
    result = client.generate("stop strings", max_tokens=30, ignore_eos=True, stop=(stop,))
    assert result.text == whole.text[: whole.text.index(stop)]
    assert result.finish_reason is FinishReason.STOP_STRING
    assert result.stop_string == stop


def test_stop_tokens_end_the_sequence_with_them(client, plain):
    prompt = client.tokenize("stop tokens").token_ids
    whole = plain(prompt, 20, ())
    for stop_id in whole[3:8]:
        result = client.generate(prompt, max_tokens=20, ignore_eos=True, stop_token_ids=(stop_id,))
        assert result.token_ids == whole[: whole.index(stop_id) + 1]
        assert result.finish_reason is FinishReason.STOP_TOKEN


def test_the_chat_template_is_applied_once(client, plain):
    messages = [{"role": "user", "content": "Hi"}]
    tokenized = client.tokenize(messages)
    assert tokenized.text == "<user>Hi<end><assistant>"
    assert client.generate(messages, max_tokens=8).token_ids == plain(tokenized.token_ids, 8)


@pytest.mark.parametrize(
    ("arguments", "error", "field"),
    [
        ({"prompt": ""}, exspec.InvalidRequestError, "prompt"),
        ({"prompt": ()}, exspec.InvalidRequestError, "prompt"),
        ({"prompt": (288,)}, exspec.InvalidRequestError, "prompt"),
        ({"prompt": "q" * 200}, exspec.ContextLengthError, "prompt"),
        ({"prompt": "q" * 150, "max_tokens": 60}, exspec.ContextLengthError, "max_tokens"),
        ({"prompt": "q", "max_tokens": 0}, exspec.InvalidRequestError, "max_tokens"),
        ({"prompt": "q", "max_tokens": -1}, exspec.InvalidRequestError, "max_tokens"),
        ({"prompt": "q", "model": "other"}, exspec.ModelNotFoundError, ""),
        ({"prompt": "q", "stop": ("",)}, exspec.InvalidRequestError, "stop"),
        ({"prompt": "q", "stop_token_ids": (999,)}, exspec.InvalidRequestError, "stop_token_ids"),
        (
            {"prompt": "q", "num_speculative_tokens": 65},
            exspec.InvalidRequestError,
            "num_speculative_tokens",
        ),
    ],
)
def test_bad_input_gets_a_typed_error_and_others_go_on(client, plain, arguments, error, field):
    with client.stream("undisturbed", max_tokens=24, ignore_eos=True) as running:
        with pytest.raises(error) as caught:
            client.generate(**arguments)
        assert running.final().token_ids == plain(client.tokenize("undisturbed").token_ids, 24, ())
    assert getattr(caught.value, "field", "") == field


def test_one_bad_prompt_of_a_batch_fails_alone(client, plain):
    good, bad, also_good = client.generate_batch(("good", "w" * 250, "fine"), max_tokens=6)
    assert isinstance(bad, exspec.ContextLengthError)
    assert good.token_ids == plain(client.tokenize("good").token_ids, 6)
    assert also_good.token_ids == plain(client.tokenize("fine").token_ids, 6)


def test_a_cancelled_stream_frees_its_place(client, noise_cluster):
    for _ in range(8):  # twice as many as there are places
        with client.stream("cancel me", max_tokens=150, ignore_eos=True) as stream:
            next(stream.text_deltas())
    result = client.generate("after", max_tokens=4)
    assert result.usage.num_generated_tokens <= 4
    status = client.cluster_status()
    assert (status.num_running, status.num_waiting) == (0, 0)


def test_what_is_served_and_how_it_stands(client, noise_cluster, target_dir):
    (model,) = client.list_models()
    assert model.max_length == 200
    assert model.stop_token_ids == STOP_IDS
    assert {worker.state.value for worker in client.cluster_status().workers} == {"ready"}
    addresses = noise_cluster.addresses
    services = {
        "coordinator": "exspec.v1.GenerationService",
        "target-0": "exspec.v1.TargetService",
        "draft-0": "exspec.v1.DraftService",
    }
    for name, service in services.items():
        assert probe(addresses[name], service, timeout_seconds=5)
        assert probe(addresses[name], "", timeout_seconds=5)
