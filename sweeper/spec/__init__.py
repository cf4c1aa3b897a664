"""What a batch-size study means: plain values and pure functions, standard library only."""
