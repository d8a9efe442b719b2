"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# Timings never gate a test: how long an example takes is the machine's business.
settings.register_profile("numawarden", deadline=None)
settings.load_profile("numawarden")
