"""The cluster proved: killed at every round, cut off, flooded, fed nonsense. Nothing may change."""
