"""An interactive page about the runs of one or more results folders, and what it says in words."""
