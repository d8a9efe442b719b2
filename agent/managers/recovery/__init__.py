"""Allocations of running pods that are not in the checkpoint, recovered from cgroups."""
