"""Small parts that every layer above may use: errors, the clock, files, task helpers."""
