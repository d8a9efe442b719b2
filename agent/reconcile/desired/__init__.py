"""What each cgroup should have, from the ledger."""
