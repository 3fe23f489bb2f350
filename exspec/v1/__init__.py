"""Generated from protos/exspec/v1 by `make protos`; do not edit."""
