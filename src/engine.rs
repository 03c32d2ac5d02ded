//! The straight line as one pure function.
