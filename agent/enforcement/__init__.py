"""The ledger made real: pod and container cgroups get, and keep, what the ledger says."""
