//! How the end of a program is to be read: what it means and what to do about it.

use serde::Serialize;

/// How a program ended, as whoever watched over it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Exited(u8),
    Signalled(i32),
    /// There is no such program.
    NotFound,
    /// It is there and may not be run.
    NotExecutable,
    TimedOut,
    OutOfMemory,
    OutOfDisk,
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Interpretation {
    pub meaning: String,
    pub action: String,
}

impl End {
    /// The code under which it is known. A timeout is 143 even if the program had to be killed; 137 without a full
    /// memory is an ordinary SIGKILL.
    pub fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Signalled(signal) => u8::try_from(128 + signal).unwrap_or(255),
            Self::NotFound => 127,
            Self::NotExecutable => 126,
            Self::TimedOut | Self::Cancelled => 143,
            Self::OutOfMemory => 137,
            Self::OutOfDisk => 153,
        }
    }

    pub const fn status(self) -> &'static str {
        match self {
            Self::Exited(0) => "success",
            Self::TimedOut => "timeout",
            Self::Cancelled => "cancelled",
            Self::OutOfMemory => "out_of_memory",
            Self::OutOfDisk => "out_of_disk",
            _ => "failure",
        }
    }

    pub fn interpretation(self) -> Interpretation {
        let of = |meaning: &str, action: &str| Interpretation { meaning: meaning.into(), action: action.into() };
        match self {
            Self::Exited(0) => of("Success", "Continue workflow"),
            Self::Exited(126) | Self::NotExecutable => of("Permission denied", "Escalate"),
            Self::Exited(127) | Self::NotFound => of("Command not found", "Check allowlist"),
            Self::Exited(code @ (1..=125 | 128)) => of(&format!("Tool-specific error {code}"), "Log and handle"),
            // Above 128 a shell tells of a program of its own that was ended by a signal.
            Self::Exited(code) => signal(i32::from(code) - 128),
            Self::Signalled(number) => signal(number),
            Self::TimedOut => of("SIGTERM (timeout)", "Extend timeout or fail"),
            Self::Cancelled => of("Ended on demand", "Continue without it"),
            Self::OutOfMemory => of("OOM killed", "Increase memory or fail"),
            Self::OutOfDisk => of("Wrote more than disk_mb allows", "Increase disk_mb or fail"),
        }
    }
}

fn signal(number: i32) -> Interpretation {
    let name = NAMES.iter().find(|(known, _)| *known == number).map_or("unknown", |(_, name)| name);
    Interpretation {
        meaning: format!("Signal termination: {name} ({number})"),
        action: format!("Log signal number {number}"),
    }
}

const NAMES: &[(i32, &str)] = &[
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (11, "SIGSEGV"),
    (13, "SIGPIPE"),
    (14, "SIGALRM"),
    (15, "SIGTERM"),
    (24, "SIGXCPU"),
    (25, "SIGXFSZ"),
    (31, "SIGSYS"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table() {
        let read = |end: End| {
            let Interpretation { meaning, action } = end.interpretation();
            (end.code(), meaning, action)
        };
        let row = |code: u8, meaning: &str, action: &str| (code, meaning.to_owned(), action.to_owned());
        assert_eq!(read(End::Exited(0)), row(0, "Success", "Continue workflow"));
        for code in 1..=125 {
            let meaning = format!("Tool-specific error {code}");
            assert_eq!(read(End::Exited(code)), row(code, &meaning, "Log and handle"));
        }
        for end in [End::Exited(126), End::NotExecutable] {
            assert_eq!(read(end), row(126, "Permission denied", "Escalate"));
        }
        for end in [End::Exited(127), End::NotFound] {
            assert_eq!(read(end), row(127, "Command not found", "Check allowlist"));
        }
        assert_eq!(read(End::Signalled(11)).0, 139);
        assert_eq!(read(End::Exited(139)), row(139, "Signal termination: SIGSEGV (11)", "Log signal number 11"));
        assert_eq!(read(End::OutOfMemory), row(137, "OOM killed", "Increase memory or fail"));
        assert_eq!(read(End::TimedOut), row(143, "SIGTERM (timeout)", "Extend timeout or fail"));
    }

    #[test]
    fn a_kill_is_out_of_memory_only_if_memory_was_out() {
        for end in [End::Signalled(9), End::Exited(137)] {
            assert_eq!(end.code(), 137);
            assert_eq!(end.interpretation().action, "Log signal number 9");
            assert_eq!(end.status(), "failure");
        }
        assert_eq!(End::OutOfMemory.status(), "out_of_memory");
        assert_eq!(End::Exited(143).interpretation().action, "Log signal number 15", "asked to end by somebody else");
    }
}
