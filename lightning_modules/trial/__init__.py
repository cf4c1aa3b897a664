"""LightningModules, the wrapper of a user's own, and what can be promised for it."""
