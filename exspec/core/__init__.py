"""Pure values and arithmetic, standard library only: no torch, grpc, asyncio, clock or logging."""
