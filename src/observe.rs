//! Reads the ports into one [`crate::fleet::Observed`].
