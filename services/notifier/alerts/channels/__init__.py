"""Contains one module for each kind of alert channel."""
