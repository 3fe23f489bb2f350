"""The thread a worker computes on: one, in order, one function at a time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from exspec.runtime.worker_thread import WorkerThread


@pytest.fixture
def thread():
    made = WorkerThread("test")
    yield made
    made.close()


async def test_functions_run_in_order_one_at_a_time_on_one_thread(thread):
    running: list[int] = []
    order: list[int] = []
    threads: set[int] = set()

    def work(number: int) -> int:
        assert not running
        running.append(number)
        threads.add(threading.get_ident())
        order.append(number)
        running.remove(number)
        return 2 * number

    assert await asyncio.gather(*(thread.run(work, i) for i in range(50))) == list(range(0, 100, 2))
    assert order == list(range(50))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_the_loop_goes_on_while_a_function_runs(thread):
    gate = threading.Event()
    waiting = asyncio.create_task(thread.run(gate.wait, 30))
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.set()
    assert await waiting


async def test_errors_reach_the_waiter_and_the_thread_goes_on(thread):
    with pytest.raises(ZeroDivisionError):
        await thread.run(divmod, 1, 0)
    assert await thread.run(divmod, 7, 2) == (3, 1)


async def test_a_cancelled_wait_lets_a_running_function_finish(thread):
    gate, entered, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        gate.wait(30)
        done.set()

    waiting = asyncio.create_task(thread.run(work))
    await asyncio.to_thread(entered.wait, 30)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    gate.set()
    assert await asyncio.to_thread(done.wait, 30)


async def test_posted_functions_take_their_turn_and_are_dropped_after_the_end(thread):
    order: list[str] = []
    thread.post(order.append, "posted")
    await thread.run(order.append, "run")
    assert order == ["posted", "run"]
    thread.close()
    thread.post(order.append, "too late")
    assert order == ["posted", "run"]
