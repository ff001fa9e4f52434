"""Instance records: decisions about them, their storage, tags and visibility."""
