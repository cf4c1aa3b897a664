"""From a grid to the runs still to do."""
