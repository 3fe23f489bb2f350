"""The scheduler under virtual time: what a cluster would do, without models, sockets or waiting.

Pure: standard library, `coordinator.scheduler` and `exspec.core`; no torch, grpc or asyncio, and
no clock but the one handed in to measure the scheduler itself. `__main__` is the only shell.
"""
