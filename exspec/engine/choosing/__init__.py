"""From logits to tokens: what `exspec.core.choosing.ChoiceRules` do, position by position."""
