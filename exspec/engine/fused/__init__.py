"""A forward pass of a few operations for draft models on a CPU, in place of transformers' modules.

A target is never run by it: its numbers are those of its own modules.
"""
