"""What a terminal shows of a sweep."""
