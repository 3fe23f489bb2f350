"""Makes a small draft model from a target: text from the target, labels, training, export."""
