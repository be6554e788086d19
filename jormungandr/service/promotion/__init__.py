"""Promotions: which policy a model's service hands out, and why (docs/promotion.md)."""
