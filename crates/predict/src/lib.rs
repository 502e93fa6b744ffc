//! Asking a model: what is asked, by which protocol, at what price, under which policy, and what is left of it.
//!
//! Called by `adapters`, `server` and `cli`. Never calls anybody: the world comes through ports, and times and ids arrive.
