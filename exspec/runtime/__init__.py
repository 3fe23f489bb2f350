"""What every process needs around the code: settings, logs, the clock, the torch thread."""
