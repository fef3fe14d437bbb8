"""Chaos of a source group: several databases, global transactions between them, one mirror."""
