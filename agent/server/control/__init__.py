"""The changes of the ledger: one queue, one writer."""
