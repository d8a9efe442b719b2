"""The CPU manager: exclusive CPUs for containers and pods (KEP-3570, KEP-2625, KEP-5526)."""
