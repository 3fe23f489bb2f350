"""Certificates for a cluster of one's own. Needs `cryptography`, which no service does."""
