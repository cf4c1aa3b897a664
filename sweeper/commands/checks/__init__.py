"""The doctor's checks; none leaves anything behind."""
