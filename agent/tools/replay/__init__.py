"""Replay: sequences of pods decided on a described host."""
