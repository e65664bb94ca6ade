"""Fixtures of the stores' tests."""

from tests.store.places import place, s3, s3_server

__all__ = ["place", "s3", "s3_server"]
