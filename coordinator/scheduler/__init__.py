"""The scheduler: a pure core. Events in, commands out; lengths only, standard library only.

No clock, no randomness, no asyncio, no token ids, no logging. `coordinator.driver` acts for it.
"""
