"""Backups of streams and buckets, and their restoration into an empty server."""
