"""The device manager: devices aligned with CPUs and memory (KEP-693, KEP-3573)."""
