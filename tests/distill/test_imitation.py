"""The loss is the one meant, its gradient is right, and held-out rounds are counted right."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from exspec.core.errors import InvalidRequestError
from exspec.distill.head_loss import frozen_head_loss
from exspec.distill.imitation import Imitator, measure
from exspec.distill.samples import Sample, collate
from exspec.distill.training import Course, Trainer
from tests.engine.tiny import VOCAB_SIZE, tiny_model

CHUNKS = 700
"""Places; more than are worked on at a time."""


def test_the_frozen_heads_loss_and_gradient_are_autograds():
    torch.manual_seed(0)
    hidden = torch.randn(CHUNKS, 12, dtype=torch.float64, requires_grad=True)
    weight, bias = torch.randn(50, 12).double(), torch.randn(50).double()
    tokens, weights = torch.randint(0, 50, (CHUNKS, 4)), torch.rand(CHUNKS, 4).double()
    own = frozen_head_loss(hidden, weight, bias, tokens, weights)
    (own / 7).backward()
    gradient, hidden.grad = hidden.grad, None
    wanted = torch.zeros(CHUNKS, 50).double().scatter_add_(1, tokens, weights)
    logits = linear(hidden, weight, bias)
    plain = cross_entropy(logits, wanted, reduction="sum")
    (plain / 7).backward()
    assert torch.allclose(own, plain, rtol=1e-12)
    assert torch.allclose(gradient, hidden.grad, rtol=1e-9, atol=1e-12)


def sample(tokens, answer_start, labels):
    """Labels `[n, k]` for the tokens from the second on, all equally likely."""
    ids = torch.tensor(labels, dtype=torch.int32)
    logprobs = torch.full(ids.shape, -2.0, dtype=torch.float16)
    return Sample(torch.tensor(tokens, dtype=torch.int32), 1, answer_start, ids, logprobs)


def random_sample(generator, size=12):
    draw = lambda *shape: torch.randint(0, VOCAB_SIZE, shape, generator=generator).tolist()  # noqa: E731
    return sample(draw(size), size // 2, draw(size - 1, 3))


@pytest.fixture
def samples():
    generator = torch.Generator().manual_seed(0)
    return [random_sample(generator, size) for size in (12, 9, 15, 6, 10, 11)]


@pytest.mark.parametrize("vocabulary", [(), tuple(range(0, VOCAB_SIZE, 2))])
def test_frozen_and_trained_heads_give_the_same_loss(vocabulary, samples):
    batch = collate(samples)
    losses = []
    for is_trained in (False, True):
        model = tiny_model("llama-gqa").float()
        model.get_output_embeddings().requires_grad_(is_trained)
        imitator = Imitator(model, vocabulary)
        imitator._dtype = torch.float32
        imitator._weight = imitator._weight.float()
        losses.append(imitator.loss(batch))
        losses[-1].backward()
        assert model.model.layers[0].self_attn.q_proj.weight.grad.abs().sum() > 0
    assert torch.allclose(losses[0], losses[1], rtol=0.02)


def test_tokens_outside_the_draft_vocabulary_do_not_count(samples):
    """With no label inside it there is nothing to learn."""
    unknown = [sample([1, 2, 3], 1, [[90], [90]])]
    imitator = Imitator(tiny_model("llama-gqa").float(), range(50))
    assert imitator.loss(collate(unknown)).item() == 0
    assert imitator.matches(unknown) == [[False, False]]


class Scripted:
    """An imitator that is right where it is told."""

    def __init__(self, matches):
        self._matches = matches

    def matches(self, samples):
        return [self._matches[one] for one in samples]


def test_held_out_rounds_are_a_coordinators():
    right, wrong = True, False
    answers = [
        [wrong, right, right, wrong, right, wrong],  # rounds of 2 + 1 and 1 + 1 tokens
        [right] + [right] * 5 + [wrong] + [right] * 2,  # 5 + 1, then 2
        [right],  # all of it came with the prompt
    ]
    found = measure(Scripted(answers), [0, 1, 2])
    assert found.num_rounds == 4
    assert found.by_position == (4 / 4, 3 / 4, 1 / 4, 1 / 4, 1 / 4)
    assert found.acceptance_length == pytest.approx(1 + 10 / 4)
    assert found.num_positions == 16
    assert found.match_rate == pytest.approx(12 / 16)


def test_a_target_learns_itself(samples):
    """Labels of its own choices: a student that starts as the target has nothing to gain."""
    model = tiny_model("llama-gqa").float()
    for one in samples:
        logits = model(one.tokens.long()[None]).logits[0, one.text_start - 1 : -1]
        one.label_ids.copy_(logits.topk(3).indices)
    assert all(all(found) for found in Imitator(model, ()).matches(samples))


def trainer_of(samples, checkpoint, num_epochs=8.0, rate=3e-3):
    student = tiny_model("llama-gqa", seed=1).float().requires_grad_(True)
    return Trainer(Imitator(student, ()), samples, Course(num_epochs, rate, 0), checkpoint)


def test_training_learns_the_labels(samples, tmp_path):
    trainer = trainer_of(samples, tmp_path / "state.pt", 50.0)
    before = trainer.measure(samples).match_rate
    losses = []
    assert trainer.run(lambda: False, lambda _, loss: losses.append(loss), lambda: 0.0)
    assert losses[-1] < losses[0] / 2
    assert trainer.measure(samples).match_rate > before + 0.2


def test_training_that_stopped_goes_on_to_the_same_weights(samples, tmp_path):
    def weights(trainer):
        return torch.cat([part.detach().flatten() for _, part in trainer._learned])

    whole = trainer_of(samples, tmp_path / "whole.pt")
    whole.run(lambda: False, lambda *_: None, lambda: 0.0)
    for number in (1, 3, 1000):
        part = trainer_of(samples, tmp_path / "part.pt")
        end = part.progress.num_steps + number
        done = part.run(
            lambda p=part, e=end: p.progress.num_steps >= e, lambda *_: None, lambda: 0.0
        )
    assert done
    assert torch.equal(weights(part), weights(whole))


def test_a_damaged_checkpoint_is_named(samples, tmp_path):
    path = tmp_path / "state.pt"
    trainer_of(samples, path).save()
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidRequestError, match=r"state\.pt"):
        trainer_of(samples, path)
    path.write_bytes(b"")
    with pytest.raises(InvalidRequestError, match=r"state\.pt"):
        trainer_of(samples, path)
    torch.save([1], path)
    with pytest.raises(InvalidRequestError, match=r"state\.pt"):
        trainer_of(samples, path)


def test_training_that_comes_to_no_numbers_is_told_and_keeps_nothing(samples, tmp_path):
    path = tmp_path / "state.pt"
    trainer = trainer_of(samples, path)
    with torch.no_grad():
        next(part for _, part in trainer._learned).fill_(math.nan)
    with pytest.raises(InvalidRequestError, match="not finite at step 1") as caught:
        trainer.run(lambda: False, lambda _number, _loss: None, lambda: 0.0)
    assert caught.value.field == "learning_rate"
    assert not path.exists()


def test_the_rate_rises_and_falls():
    course = Course(1.0, 1.0, 0)
    rates = [course.rate_at(progress / 100) for progress in range(101)]
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert 0 < rates[-1] < 0.1
