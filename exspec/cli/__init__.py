"""The command line: typer and rich. Commands import what they need when they run, never torch."""
