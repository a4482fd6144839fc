"""Parts of gateway_speed.py."""
