"""Layers whose numbers do not depend on the layout: ghost BatchNorm, keyed dropout."""
