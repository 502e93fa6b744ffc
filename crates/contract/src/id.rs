//! Names that arrive from outside and become keys. Checked once, here, so that no store has to.

use std::fmt;

use crate::limit::NAME_BYTES_MAX;

/// Whose data it is. Every store operation takes one; there is no way to ask for "all" by leaving it out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(String);

impl Tenant {
    pub fn new(name: impl Into<String>) -> Result<Self, BadName> {
        let name = name.into();
        check_name(&name)?;
        Ok(Self(name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    #[error("must not be empty")]
    Empty,
    #[error("must not be longer than {NAME_BYTES_MAX} bytes")]
    Long,
    #[error("must not contain control characters")]
    Control,
}

/// The rule for every name that becomes a key: not blank, bounded, printable (a NUL cannot be stored in PostgreSQL).
pub fn check_name(name: &str) -> Result<(), BadName> {
    if name.trim().is_empty() {
        Err(BadName::Empty)
    } else if name.len() > NAME_BYTES_MAX {
        Err(BadName::Long)
    } else if name.chars().any(char::is_control) {
        Err(BadName::Control)
    } else {
        Ok(())
    }
}

/// What the name of a currency may be, for whoever wrote another.
pub const CURRENCY_FORM: &str = "1 to 32 lower-case letters, digits or _, such as usd_micros";
const CURRENCY_BYTES_MAX: usize = 32;

/// Whether this may name a currency.
pub fn is_currency(name: &str) -> bool {
    name.len() <= CURRENCY_BYTES_MAX
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_not_blank_bounded_and_printable() {
        assert_eq!(Tenant::new("t-001").unwrap().as_str(), "t-001");
        assert_eq!(Tenant::new("").unwrap_err(), BadName::Empty);
        assert_eq!(Tenant::new(" \t").unwrap_err(), BadName::Empty);
        assert_eq!(Tenant::new("a\0b").unwrap_err(), BadName::Control);
        assert_eq!(Tenant::new("x".repeat(257)).unwrap_err(), BadName::Long);
    }
}
