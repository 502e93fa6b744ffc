//! Levels: names for sets of paths and of hosts, from little to much. What the sets are on this machine is known to who
//! builds the cell.

/// What a program sees of the file tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum FilesystemLevel {
    /// The working directory, to be read.
    #[default]
    Minimal,
    /// The repository to be read, the working directory to be written to.
    Standard,
    /// And the dependencies to be read, and where outputs go to be written to.
    Extended,
    /// And the system's own paths to be read. Waits for an approval.
    Elevated,
}

/// Whom a program reaches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkLevel {
    /// Nobody.
    #[default]
    Offline,
    /// The package registries of the configuration, and hosts that were listed.
    Registry,
    /// Hosts that were listed.
    Api,
    /// Anybody. Waits for an approval.
    Open,
}

impl FilesystemLevel {
    pub const ALL: [Self; 4] = [Self::Minimal, Self::Standard, Self::Extended, Self::Elevated];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Minimal => "minimal",
            Self::Standard => "standard",
            Self::Extended => "extended",
            Self::Elevated => "elevated",
        }
    }

    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.word().eq_ignore_ascii_case(word))
    }

    pub fn waits_for_approval(self) -> bool {
        self == Self::Elevated
    }
}

impl NetworkLevel {
    pub const ALL: [Self; 4] = [Self::Offline, Self::Registry, Self::Api, Self::Open];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Offline => "offline",
            Self::Registry => "registry",
            Self::Api => "api",
            Self::Open => "open",
        }
    }

    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.word().eq_ignore_ascii_case(word))
    }

    pub fn waits_for_approval(self) -> bool {
        self == Self::Open
    }
}
