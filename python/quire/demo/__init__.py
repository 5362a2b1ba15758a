"""`quire demo`: what quire does, with real data, in a minute."""
