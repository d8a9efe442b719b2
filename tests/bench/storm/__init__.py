"""Pods of a cluster that come to a node at once."""
