//! Adapters against real programs and against ones that mean harm; without cells, which are tested where they are made.

#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::disallowed_methods, reason = "a test starts programs and reads the environment")]

mod bare;
mod hostile;
mod real;
mod sdk;
