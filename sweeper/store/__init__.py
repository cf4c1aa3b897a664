"""What came of runs: the ledger and its files."""
