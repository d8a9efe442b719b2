"""The running agent: one owner of the ledger, two doors, one reconcile loop."""
