"""Which tokens a draft chooses among: what was asked for, or an error that says what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tokenizers import Tokenizer, models, trainers

from draft_worker.settings import DraftSettings
from exspec.core.errors import InvalidRequestError, UnsupportedModelError
from exspec.core.ids import Role
from exspec.core.models import TokenizerAssets
from exspec.engine.draft_vocabulary import find_draft_vocabulary
from exspec.engine.rows import RowInput
from exspec.engine.token_ranking import rank_tokens
from exspec.engine.worker_model import ModelOrder, load_worker_model
from exspec.runtime.settings import load_settings
from tests.engine.conftest import loaded_family
from tests.engine.tiny import save_tiny_model

SIZE = 97


@pytest.fixture
def loaded():
    """Without a tokenizer; it ends texts with 0."""
    return loaded_family("llama-gqa")


def test_without_a_word_it_is_what_the_model_brings(loaded):
    assert find_draft_vocabulary("", loaded) is None
    brings = replace(loaded, draft_vocabulary=(9, 3))
    assert find_draft_vocabulary("", brings) == (3, 9)
    assert find_draft_vocabulary("all", brings) is None
    with pytest.raises(UnsupportedModelError, match=r"draft_vocab\.json: token id 97 .*\[0, 97\)"):
        find_draft_vocabulary("", replace(loaded, draft_vocabulary=(3, 97)))


@pytest.mark.parametrize("body", ["[7, 3]", '{"token_ids": [3, 7], "counts": [9, 1]}'])
def test_a_file_lists_the_tokens(loaded, tmp_path, body):
    path = tmp_path / "ids.json"
    path.write_text(body)
    assert find_draft_vocabulary(str(path), loaded) == (3, 7)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (None, "does not exist; give a JSON file"),
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"{}", "neither a list"),
        (b'"all"', "neither a list"),
        (b"[1, true]", "entry 1 is 'True'"),
        (b"[1, 2.0]", "entry 1 is '2.0'"),
        (b"[-1]", "entry 0 is '-1'"),
        (b"[5, 6, 5]", "lists token id 5 twice"),
        (b"[0, 97]", r"token id 97 is outside \[0, 97\), the vocabulary of tiny-llama-gqa"),
        (b"[]", "lists no token id"),
    ],
    ids=str,
)
def test_a_file_that_is_wrong_is_named_with_what_is_wrong(loaded, tmp_path, body, says):
    path = tmp_path / "ids.json"
    if body is not None:
        path.write_bytes(body)
    with pytest.raises(InvalidRequestError, match=says) as caught:
        find_draft_vocabulary(str(path), loaded)
    assert caught.value.field == "draft_vocab"
    assert str(path) in str(caught.value)


def test_a_directory_is_no_file(loaded, tmp_path):
    with pytest.raises(InvalidRequestError, match="cannot be read: Is a directory"):
        find_draft_vocabulary(str(tmp_path), loaded)


def test_a_number_takes_the_first_tokens_and_those_that_end_a_text(loaded):
    facts = replace(loaded.facts, stop_token_ids=(90,))
    assert find_draft_vocabulary("3", replace(loaded, facts=facts)) == (0, 1, 90)
    assert find_draft_vocabulary(str(SIZE - 1), loaded) == tuple(range(SIZE - 1))
    for number in (SIZE, 10**9):
        assert find_draft_vocabulary(str(number), loaded) is None
    with pytest.raises(InvalidRequestError, match="of 0 tokens is too small: at least 1") as caught:
        find_draft_vocabulary("0", loaded)
    assert caught.value.field == "draft_vocab"


@pytest.mark.parametrize("wanted", ["+-5", "-+5", "--5", "+", " 5"])
def test_what_only_looks_like_a_number_is_taken_for_a_file(loaded, wanted):
    with pytest.raises(InvalidRequestError, match="does not exist; give a JSON file"):
        find_draft_vocabulary(wanted, loaded)


def test_special_tokens_are_always_there_and_never_from_beyond_the_head(loaded):
    added = [{"id": 4, "special": True}, {"id": 96, "special": True}, {"id": 97, "special": True}]
    added.append({"id": 80, "special": False})
    tokenizer = {"added_tokens": added, "model": {"vocab": {f"w{i}": i for i in range(90)}}}
    with_tokenizer = replace(loaded, tokenizer=TokenizerAssets(json.dumps(tokenizer)))
    assert find_draft_vocabulary("3", with_tokenizer) == (0, 4, 96)
    assert find_draft_vocabulary("6", with_tokenizer) == (0, 1, 2, 4, 80, 96)
    assert len(find_draft_vocabulary("90", with_tokenizer)) == 90
    assert find_draft_vocabulary("91", with_tokenizer) is None
    with pytest.raises(InvalidRequestError, match="of 2 tokens is too small: at least 3"):
        find_draft_vocabulary("2", with_tokenizer)


def test_merged_tokens_are_likelier_the_earlier_they_were_merged():
    """And every character of the alphabet comes before them."""
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=20, special_tokens=["<s>"], show_progress=False)
    tokenizer.train_from_iterator(["abab", "abab", "ab", " cd"], trainer)
    ranking = rank_tokens(tokenizer.to_str())
    ranked = [tokenizer.id_to_token(i) for i in ranking.ranked]
    assert set(ranked[:5]) == set("abcd ")
    assert ranked[5:] == ["ab", "abab", " c", " cd"]
    assert ranking.special == (0,)
    assert sorted((*ranking.ranked, *ranking.special)) == list(range(tokenizer.get_vocab_size()))


def test_characters_at_the_end_of_a_converted_vocabulary_are_not_the_rarest_tokens():
    """SentencePiece: bytes, merges, then characters by frequency; merges are pairs here."""
    names = ["<unk>", "<0x00>", "<0x01>", "ab", "abc", "bc", "a", "b", "c", ","]
    model = {
        "type": "BPE",
        "vocab": {name: i for i, name in enumerate(names)},
        "merges": [["a", "b"], ["b", "c"], ["ab", "c"], ["a", "bc"]],
    }
    tokenizer = {"model": model, "added_tokens": [{"id": 0, "special": True}]}
    ranked = [names[i] for i in rank_tokens(json.dumps(tokenizer)).ranked]
    assert ranked == ["a", "b", "c", ",", "ab", "bc", "abc", "<0x00>", "<0x01>"]


def test_of_many_characters_the_rare_ones_are_spread_over_the_merges():
    characters = [chr(0x4E00 + i) for i in range(256 + 10)]
    merges = [f"{characters[0]} {characters[i]}" for i in range(20)]
    names = [*characters, *(merge.replace(" ", "") for merge in merges)]
    model = {"vocab": {name: i for i, name in enumerate(names)}, "merges": merges}
    ranked = rank_tokens(json.dumps({"model": model, "added_tokens": []})).ranked
    assert ranked[:256] == tuple(range(256))
    half = ranked[256 : 256 + 15]
    assert sorted(half) == [*range(256, 261), *range(266, 276)]


def test_a_unigram_model_says_how_likely_its_tokens_are():
    model = {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -3.5], ["the", -2.0], ["x", -9.0]]}
    tokenizer = {"model": model, "added_tokens": [{"id": 0, "special": True}]}
    assert rank_tokens(json.dumps(tokenizer)).ranked == (2, 1, 3)


def test_no_tokenizer_has_no_ranking():
    assert rank_tokens("").ranked == ()


@pytest.mark.parametrize(("wanted", "num_rows"), [("40", 40), ("", 2), ("all", 288)])
def test_a_draft_worker_cuts_its_head_and_a_target_does_not(tmp_path, caplog, wanted, num_rows):
    caplog.set_level("INFO")
    save_tiny_model(tmp_path, seed=1)
    (tmp_path / "draft_vocab.json").write_text("[7, 8]")
    settings = load_settings(DraftSettings, ["--model", str(tmp_path), "--draft-vocab", wanted])
    for role in (Role.DRAFT, Role.TARGET):
        order = ModelOrder(role, settings.model, 1, draft_vocab=settings.draft_vocab)
        _loaded, runner = load_worker_model(settings, order)
        assert f"draft.vocabulary rows={num_rows} of=288" in caplog.text or num_rows == 288
        logits = runner._pass([RowInput(0, 0, (9, 10), 1)]).logits.logits
        assert logits.shape[-1] == (num_rows if role is Role.DRAFT else 288)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--draft-vocab", "0"], "--draft-vocab: at least 1 token is needed (got '0')"),
        (["--draft-vocab=-3"], "--draft-vocab: at least 1 token is needed (got '-3')"),
        (["--model", "ngram", "--draft-vocab", "9"], "has no vocabulary to cut"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(arguments, says, capsys):
    with pytest.raises(SystemExit):
        load_settings(DraftSettings, arguments)
    assert says in capsys.readouterr().err
