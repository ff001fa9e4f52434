"""What providers report of their hosts: events that they schedule, and failing status checks."""
