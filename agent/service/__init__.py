"""The running agent: one owner of the ledger, the doors it is asked through, what it watches."""
