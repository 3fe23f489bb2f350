"""KV memory of a worker: layouts, the tensors they place rows in, and grouped attention."""
