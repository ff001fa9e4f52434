"""The fleet's facts and samples as Prometheus metrics."""
