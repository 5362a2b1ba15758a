"""`quire demo`: shows the features of quire with real data, in about a minute."""
