//! A seeded world behind the ports of production.
