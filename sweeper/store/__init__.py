"""The outcomes of runs: the ledger and its files."""
