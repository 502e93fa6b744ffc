//! `actum completions`: completion scripts.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::Ended;
use crate::args::Parsed;
use crate::ui::Out;

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  actum completions bash > ~/.local/share/bash-completion/completions/actum")]
pub(crate) struct Completions {
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self, out: &mut Out) -> Ended {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Parsed::command(), "actum", &mut script);
        out.bytes(&script);
        Ok(0)
    }
}
