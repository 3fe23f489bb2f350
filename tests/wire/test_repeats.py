"""A batch that comes twice on one stream is refused; a long stream costs no memory."""

import pytest

from exspec.core.errors import ProtocolError
from exspec.core.ids import BatchId
from exspec.wire.repeats import SeenBatches


def test_a_batch_that_comes_twice_is_refused_however_late():
    seen = SeenBatches()
    for number in range(1000):
        seen.note(BatchId(number))
    for number in (0, 500, 999):
        with pytest.raises(ProtocolError, match=f"batch_id: {number} came twice"):
            seen.note(BatchId(number))


def test_only_so_many_are_remembered():
    seen = SeenBatches(num_remembered=3)
    for number in (1, 2, 3, 4):
        seen.note(BatchId(number))
    seen.note(BatchId(1))
    for number in (3, 4, 1):
        with pytest.raises(ProtocolError):
            seen.note(BatchId(number))
