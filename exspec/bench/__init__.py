"""Load and comparison runs. Every figure comes with the other side of its comparison."""
