"""The comparison finds planted faults, and tells a tie from a fault."""

from __future__ import annotations

import pytest

from exspec.audit.compare import DifferenceKind, Evidence, compare
from exspec.audit.equality import Answer, Question, judge_answers
from exspec.core.generation import SpeculationStats

STOP = 2
STOPS = (STOP,)
REFERENCE = (10, 11, 12, STOP)


def stats(num_rounds=2, num_drafted=5, num_accepted=3):
    return SpeculationStats(num_rounds, num_drafted, num_accepted)


def evidence(served_gap, *, reference_gap=0.0, rounding_error=1e-4):
    return Evidence(12, 13, served_gap, reference_gap, served_gap, rounding_error)


class FixedJudge:
    """Gives the same evidence whatever is asked, and remembers what was."""

    def __init__(self, served_gap=1.0):
        self.served_gap = served_gap
        self.asked = []

    def weigh(self, question, common, difference):
        self.asked.append((question.prompt_tokens, tuple(common), difference))
        return evidence(self.served_gap)


def judged(answers, references=None, judge=None):
    questions = [Question(f"q{i}", "kind", (1, 5, 6)) for i in range(len(answers))]
    references = references or [REFERENCE] * len(answers)
    return judge_answers(questions, references, answers, STOPS, judge or FixedJudge())


@pytest.mark.parametrize(
    ("reference", "served", "kind", "position"),
    [
        (REFERENCE, (10, 11, 12, STOP, 7), DifferenceKind.AFTER_STOP, 4),
        (REFERENCE, (10, 11, 12, STOP, STOP), DifferenceKind.AFTER_STOP, 4),
        (REFERENCE, (10, 11, 12), DifferenceKind.TOO_SHORT, 3),
        (REFERENCE, (), DifferenceKind.TOO_SHORT, 0),
        (REFERENCE, (10, 99, 12, STOP), DifferenceKind.OTHER_TOKEN, 1),
        (REFERENCE, (9, 10, 11, 12, STOP), DifferenceKind.OTHER_TOKEN, 0),
        ((10, 11), (10, 11, 12), DifferenceKind.TOO_LONG, 2),
        ((), (10,), DifferenceKind.TOO_LONG, 0),
    ],
)
def test_the_first_difference_is_found(reference, served, kind, position):
    comparison = compare(reference, served, STOPS)
    assert not comparison.is_exact
    assert comparison.difference.kind is kind
    assert comparison.difference.position == position
    assert comparison.common_length == position
    assert comparison.difference.reference_token == (
        reference[position] if position < len(reference) else None
    )
    assert comparison.difference.served_token == (
        served[position] if position < len(served) else None
    )


@pytest.mark.parametrize("tokens", [REFERENCE, (10, 11), (STOP,), ()])
def test_the_same_is_exact(tokens):
    comparison = compare(tokens, tokens, STOPS)
    assert comparison.is_exact
    assert comparison.difference is None
    assert comparison.partial_match == 1.0


def test_partial_match_is_the_share_of_the_reference_before_the_difference():
    assert compare(REFERENCE, (10, 11, 99), STOPS).partial_match == 0.5
    assert compare(REFERENCE, (*REFERENCE, 7), STOPS).partial_match == 1.0
    assert compare((), (7,), STOPS).partial_match == 0.0


def test_a_tie_lies_within_twice_the_rounding_error():
    assert evidence(1.9e-4).is_tie
    assert evidence(2e-4).is_tie
    assert not evidence(2.1e-4).is_tie
    assert evidence(0.0).is_tie


def test_both_tokens_must_be_near_the_best_one():
    """The reference's own token is not beyond suspicion: a third token may be the best."""
    assert not evidence(0.0, reference_gap=1.0).is_tie
    assert not evidence(0.0, reference_gap=3e-4).is_tie


def test_equal_answers_pass_and_no_judge_is_asked():
    judge = FixedJudge()
    verdict = judged([Answer(REFERENCE, stats()), Answer(REFERENCE, stats())], judge=judge)
    assert verdict.passes
    assert verdict.exact_match == verdict.partial_match == 1.0
    assert verdict.differences == ()
    assert judge.asked == []
    assert verdict.speculation == stats(4, 10, 6)


def test_a_tie_passes_and_is_listed():
    judge = FixedJudge(served_gap=1e-4)
    verdict = judged([Answer(REFERENCE, stats()), Answer((10, 11, 13, 14), stats())], judge=judge)
    assert verdict.passes
    assert verdict.exact_match == 0.5
    assert verdict.partial_match == 0.75
    assert verdict.num_ties == 1
    (finding,) = verdict.differences
    assert (finding.index, finding.prompt_id, finding.is_tie) == (1, "q1", True)
    ((prompt, common, difference),) = judge.asked
    assert (prompt, common) == ((1, 5, 6), (10, 11))
    assert (difference.reference_token, difference.served_token) == (12, 13)


def test_another_token_that_is_no_tie_fails():
    verdict = judged([Answer((10, 11, 13, 14), stats())])
    assert not verdict.passes
    assert verdict.num_ties == 0


def test_a_token_leaked_after_the_stop_fails_whatever_its_logits():
    """The paper's own fault (its E fell by five points, its P not at all)."""
    judge = FixedJudge(served_gap=0.0)
    verdict = judged([Answer((*REFERENCE, 7), stats())], judge=judge)
    assert not verdict.passes
    assert verdict.partial_match == 1.0
    assert judge.asked == []


@pytest.mark.parametrize("served", [(), (10, 11, 12)])
def test_an_answer_that_ends_early_fails(served):
    assert not judged([Answer(served, stats())], judge=FixedJudge(served_gap=0.0)).passes


def test_a_failed_request_fails_even_if_its_tokens_are_right():
    verdict = judged([Answer(REFERENCE, stats(), error="WorkerLostError: gone")])
    assert not verdict.passes
    assert verdict.exact_match == verdict.partial_match == 0.0
    assert verdict.differences[0].error == "WorkerLostError: gone"


def test_every_prompt_needs_one_reference_and_one_answer():
    question = Question("q", "", (1,))
    with pytest.raises(ValueError, match=r"shorter|longer"):
        judge_answers([question], [REFERENCE], [], STOPS, FixedJudge())
    with pytest.raises(ValueError, match="at least one prompt"):
        judge_answers([], [], [], STOPS, FixedJudge())
