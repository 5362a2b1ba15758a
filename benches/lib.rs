//! The Criterion benches are in `benches/`, those of whole processes in `end_to_end.py`.
