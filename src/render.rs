//! Views of the wire form of a plan.
