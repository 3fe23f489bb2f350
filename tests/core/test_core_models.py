"""Whether a draft fits a target, and what identifies a vocabulary."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from exspec.core.models import ModelFacts, misfit, vocabulary_sha256

TARGET = ModelFacts(
    name="target",
    architecture="llama",
    vocab_size=152_064,
    tokenizer_size=151_669,
    tokenizer_sha256="a" * 64,
    max_length=4096,
    stop_token_ids=(2,),
    dtype="float32",
    device="cpu",
    num_parameters=1,
    fingerprint="f",
)
VOCABULARIES = st.dictionaries(st.text(max_size=4), st.integers(0, 50), max_size=8)


def test_padded_vocabularies_of_different_size_fit():
    assert misfit(replace(TARGET, name="draft", vocab_size=151_936), TARGET) is None


def test_another_tokenizer_does_not_fit_and_both_are_named():
    draft = replace(TARGET, name="draft", tokenizer_sha256="b" * 64)
    reason = misfit(draft, TARGET)
    assert reason is not None
    assert "'draft'" in reason
    assert "'target'" in reason


def test_a_draft_without_a_tokenizer_fits_everything():
    assert misfit(replace(TARGET, tokenizer_sha256=""), TARGET) is None


def test_a_draft_with_a_tokenizer_does_not_fit_a_target_without():
    reason = misfit(TARGET, replace(TARGET, name="bare", tokenizer_sha256=""))
    assert reason is not None
    assert "none" in reason


@given(VOCABULARIES)
def test_the_hash_does_not_depend_on_the_order_of_entries(vocabulary):
    turned = dict(reversed(vocabulary.items()))
    assert vocabulary_sha256(turned) == vocabulary_sha256(vocabulary)


@given(VOCABULARIES, VOCABULARIES)
def test_different_vocabularies_have_different_hashes(left, right):
    assert (vocabulary_sha256(left) == vocabulary_sha256(right)) == (left == right)


def test_tokens_that_run_together_are_told_apart():
    assert vocabulary_sha256({"ab": 0, "c": 1}) != vocabulary_sha256({"a": 0, "bc": 1})
    assert vocabulary_sha256({"1:": 0}) != vocabulary_sha256({":1": 0})
    vocabulary_sha256({"\ud800": 0})  # lone surrogates occur in byte-level vocabularies
