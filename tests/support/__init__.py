"""What several test modules share: servers and clients in processes, fakes of either side, and how
long to wait."""
