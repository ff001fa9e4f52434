"""The parts of the JetStream protocol that both bus implementations share."""
