"""An interactive page about the runs of one or more results folders, and its estimates as text."""
