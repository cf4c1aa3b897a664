"""Time against device-hours for each batch, on a cluster that is described rather than used."""
