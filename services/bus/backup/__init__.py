"""Backs up streams and buckets, and restores them into an empty server."""
