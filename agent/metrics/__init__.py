"""What Prometheus scrapes: names, counters, and gauges computed from the ledger."""
