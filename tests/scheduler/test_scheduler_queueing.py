"""Who is next in the queue: priority, then fair turns between groups, then arrival."""

from __future__ import annotations

from scheduler_bench import Bench

from coordinator.scheduler.rows import Phase
from exspec.core.ids import Role


class Queue(Bench):
    """A target that serves one sequence at a time; a finished one frees its place."""

    def __init__(self) -> None:
        super().__init__(drafts=(), rule="0", batch_size=1)
        self.served: list[str] = []

    def come(self, *names, priority=0, group=""):
        """`group`, or the letter before the number of each name."""
        for name in names:
            self.arrive(name, priority=priority, group=group or name[0])

    def serve(self, num=99) -> str:
        """Who was served, in order, until nobody waits or `num` were."""
        served = []
        while self.flights["t"] and len(served) < num:
            (order,) = self.flights["t"][0].orders
            served.append(order.key.sequence_id)
            self.verified(finished=served)
        return " ".join(served)


def test_a_lower_priority_value_goes_first_whenever_it_came():
    queue = Queue()
    queue.come("now")
    queue.come("b1", "b2", priority=5)
    queue.come("c1", priority=0)
    queue.come("d1", priority=-3)
    assert queue.serve() == "now d1 c1 b1 b2"


def test_a_thousand_of_one_client_and_one_of_another_alternate():
    queue = Queue()
    queue.come("now")
    queue.come(*(f"g{i}" for i in range(20)))
    queue.come("h0", "h1")
    assert queue.serve(6) == "now g0 h0 g1 h1 g2"


def test_three_clients_take_turns():
    queue = Queue()
    queue.come("now")
    queue.come("g0", "g1", "g2", "h0", "h1", "i0", "i1", "i2", "i3")
    assert queue.serve() == "now g0 h0 i0 g1 h1 i1 g2 i2 i3"


def test_who_comes_later_does_not_wait_for_what_others_queued_before():
    queue = Queue()
    queue.come("now", *(f"g{i}" for i in range(9)))
    queue.serve(4)
    queue.come("h0")
    assert "h0" in queue.serve(3)


def test_who_was_idle_gets_no_credit_for_it():
    """h did not come for long; now it takes turns, it is not served all at once."""
    queue = Queue()
    queue.come("now", *(f"g{i}" for i in range(30)))
    queue.serve(15)
    queue.come("h0", "h1", "h2", "h3")
    assert 3 <= queue.serve(8).count("h") <= 5


def test_without_a_group_everybody_is_one_of_their_own():
    queue = Queue()
    queue.arrive("now")
    for name in ("a", "b", "c"):
        queue.arrive(name)
    assert queue.serve() == "now a b c"


def test_sequences_of_one_group_keep_their_order_whoever_of_them_leaves():
    queue = Queue()
    queue.come("now", *(f"g{i}" for i in range(6)))
    for name in ("g0", "g2", "g3"):
        queue.cancel(name)
    queue.come("g6", "g7")
    assert queue.serve() == "now g1 g4 g5 g6 g7"


def test_turns_of_those_who_left_the_queue_are_given_back():
    queue = Queue()
    queue.come("now", *(f"g{i}" for i in range(50)))
    for i in range(50):
        queue.cancel(f"g{i}")
    queue.come("g50")
    queue.come(*(f"h{i}" for i in range(10)))
    assert "g50" in queue.serve(4)


def test_who_loses_its_target_keeps_its_place():
    queue = Queue()
    queue.come("a0", "b0", "c0")
    queue.lose("t")
    assert queue.phase("a0") is Phase.WAITING
    queue.join("t", Role.TARGET)
    assert queue.serve() == "a0 b0 c0"


def test_who_fits_no_target_blocks_nobody():
    queue = Queue()
    queue.come("now")
    queue.arrive("big", max_length=10_000, priority=-9)
    queue.come("b0", "c0")
    assert queue.serve() == "now b0 c0"
    assert queue.phase("big") is Phase.WAITING
