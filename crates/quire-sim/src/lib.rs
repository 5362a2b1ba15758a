//! Seeded simulation of the whole system.
