//! Carries an approved plan out over the ports.
