"""Allocations of pods that run and that no checkpoint knows."""
