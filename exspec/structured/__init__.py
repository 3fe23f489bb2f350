"""Grammars for structured output, in llguidance's terms; nothing heavier than it is imported."""
