//! Serving over HTTP.
