"""An interactive page about the runs of results folders, and its estimates as text."""
