"""Models and their KV memory: torch and transformers live here, sequences and protocols do not."""
