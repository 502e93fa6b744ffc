//! Input and output transforms.
