"""What every test may ask for."""

from ways_in import url

__all__ = ["url"]
