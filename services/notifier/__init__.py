"""The workload system is told to cordon and drain; people are told what happened."""
