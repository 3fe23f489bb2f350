"""exspec: exact speculative decoding as a service. Importing this loads neither torch nor a server."""
