"""Contains what tests share: services run in process, scripted peers, waiting for results."""
