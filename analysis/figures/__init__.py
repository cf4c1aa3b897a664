"""Figures of any sweep: frames first, then ink."""
