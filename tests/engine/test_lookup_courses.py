"""Look-up beside the model and alone: the tokens stay those of plain decoding, the sums add up."""

from __future__ import annotations

import pytest

from exspec.core.choosing import ChoiceRules
from exspec.engine.kv.layout import KvLayoutName
from tests.engine.policy_courses import Course, drawn_request, limits, seed_of
from tests.engine.policy_workers import Setting

RULES = [None, ChoiceRules(5, temperature=0.8), ChoiceRules(7, temperature=0.2)]


def _repeating(random, family):
    """Greedy requests and sampled ones whose prompts say things twice."""
    request = drawn_request(random, family)
    request.stops = ()
    request.prompt = request.prompt[:20] * 2
    request.rules = random.choice(RULES)
    return request


@pytest.mark.parametrize(
    ("draft", "rule"), [("beside", "auto"), ("beside-other", "4"), ("ngram", "4")]
)
def test_looked_up_or_not_the_tokens_are_those_of_plain_decoding(layout, draft, rule):
    """Through lost workers, late drafts and moves."""
    policy = "eqspec" if layout is KvLayoutName.PADDED else "exspec"
    setting = Setting(policy, rule, layout, limits(5, 2), num_drafts=2, draft=draft)
    totals = Course(setting, seed_of(setting), _repeating).run().accounting.totals
    assert totals.num_draft_tokens == totals.num_model_tokens + totals.num_looked_up_tokens
    assert 0 <= totals.num_accepted_looked_up_tokens <= totals.num_looked_up_tokens
    assert 0 <= totals.num_accepted_model_tokens <= totals.num_model_tokens
    assert totals.num_looked_up_tokens or draft == "beside"
    assert (totals.num_model_tokens > 0) is (draft != "ngram")
