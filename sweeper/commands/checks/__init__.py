"""What the doctor checks; no check leaves anything behind."""
