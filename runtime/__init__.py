"""What every service has: bus, settings, life cycle, roster, logs, metrics."""
