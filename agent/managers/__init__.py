"""The Topology, CPU, Memory and Device managers: pure decisions over immutable values."""
