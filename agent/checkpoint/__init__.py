"""The ledger made durable: one versioned, checksummed file, replaced atomically."""
