"""A cgroup v2 hierarchy without a kernel: the same rules, in memory or in plain files.

For the demonstration (which needs no root) and for tests. `tests/cgroupfs/contract.py` runs the
same tests against this and against the real kernel.
"""
