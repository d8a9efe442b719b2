"""What pods hold: the ledger and its values, immutable."""
