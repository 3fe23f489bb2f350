"""The correctness laboratory: compares what a cluster serves with plain decoding."""
