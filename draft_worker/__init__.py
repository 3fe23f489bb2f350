"""The draft worker: holds a small model (or an n-gram table) and proposes tokens."""
