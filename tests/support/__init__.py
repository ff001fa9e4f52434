"""What tests share: services run in process, scripted peers, waiting for what must happen."""
