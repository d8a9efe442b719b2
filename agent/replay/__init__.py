"""Replaying sequences of pods on described hosts: what the agent would decide there."""
