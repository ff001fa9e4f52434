"""The saga engine: definition, log (pure), decisions (pure), coordinator, participant."""
