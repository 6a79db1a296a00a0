"""When does it happen? Joins hardware and workload in one event loop."""
