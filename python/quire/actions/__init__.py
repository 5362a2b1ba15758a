"""Actions: steps that a server runs when something happens (docs/actions.md)."""
