"""The coordinator: token log, scheduler, worker registry and the public API. Loads no torch."""
