//! Functions of packages that people use.
