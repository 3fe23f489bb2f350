"""The target worker: holds the model that decides, and verifies batches of proposals."""
