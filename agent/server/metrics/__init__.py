"""Prometheus metrics: names, counters, gauges, text."""
