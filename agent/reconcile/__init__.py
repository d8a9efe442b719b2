"""Reconciling: what cgroups should be, what they are, and writing the difference."""
