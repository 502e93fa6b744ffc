//! The table of limits: defaults, and what may be asked for. Out of range is refused, never bent.

/// One amount of which a cell may use only so much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub name: &'static str,
    pub default: u64,
    pub min: u64,
    pub max: u64,
    pub what: &'static str,
}

/// As in the seed; `disk_mb` is ours, because a full disk stops everybody.
pub const LIMITS: [Limit; 5] = [
    Limit { name: "timeout_ms", default: 30_000, min: 1_000, max: 600_000, what: "how long it may take" },
    Limit { name: "memory_mb", default: 512, min: 64, max: 4_096, what: "memory of all its processes together" },
    Limit { name: "cpu_cores", default: 1, min: 1, max: 4, what: "logical cores" },
    Limit { name: "max_children", default: 10, min: 0, max: 100, what: "processes beside the first" },
    Limit { name: "disk_mb", default: 1_024, min: 1, max: 65_536, what: "what it may write to disk" },
];

/// The limit with this name. Names are constants in the code, so a missing one is found by the tests.
pub fn limit(name: &str) -> &'static Limit {
    LIMITS.iter().find(|limit| limit.name == name).unwrap_or(&LIMITS[0])
}

impl Limit {
    pub fn allows(&self, value: u64) -> bool {
        (self.min..=self.max).contains(&value)
    }

    pub fn range(&self) -> String {
        format!("a whole number from {} to {}", self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_the_seeds() {
        let row = |name: &str| {
            let limit = limit(name);
            assert_eq!(limit.name, name);
            (limit.default, limit.min, limit.max)
        };
        assert_eq!(row("timeout_ms"), (30_000, 1_000, 600_000));
        assert_eq!(row("memory_mb"), (512, 64, 4_096));
        assert_eq!(row("cpu_cores"), (1, 1, 4));
        assert_eq!(row("max_children"), (10, 0, 100));
        for limit in LIMITS {
            assert!(limit.allows(limit.default) && limit.allows(limit.min) && limit.allows(limit.max));
            assert!(!limit.allows(limit.max + 1) && (limit.min == 0 || !limit.allows(limit.min - 1)));
        }
    }
}
