"""Attacks on our own guarantees: lower bounds on epsilon, beside the epsilon that is claimed."""
