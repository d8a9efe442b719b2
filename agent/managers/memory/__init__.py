"""The memory manager: memory and huge pages of NUMA nodes (KEP-1769, KEP-5526)."""
