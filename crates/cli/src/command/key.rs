//! `actum key`: who signs.

use actum_api::error;
use clap::{Args, Subcommand};
use serde_json::json;

use super::Ended;
use crate::args::Global;
use crate::failure::Failure;
use crate::key::Key;
use crate::project::Project;
use crate::seat::told_to;
use crate::ui::Out;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the public key that signs for this project; it is made on first use
    Show(Show),
    /// Sign with a new key; what the old one signed stays valid. Workers that are running take it when they are started again
    Rotate,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// As a PEM file, for other tools
    #[arg(long)]
    pem: bool,
}

fn none_yet() -> Failure {
    Failure::new(error::NOT_FOUND, "nothing has been signed here yet, so there is no key")
        .hint("it is made by the first run, checkpoint or prediction")
}

impl Verb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        let (key, pem_only) = match self {
            // To look is not to make: whoever asks from elsewhere may be allowed to read only.
            Self::Show(show) if project.seat().is_some() => (Key::find(&project)?.ok_or_else(none_yet)?, show.pem),
            Self::Show(show) => (Key::find_or_make(&project)?, show.pem),
            Self::Rotate => (Key::rotate(&project)?, false),
        };
        let (pem, public) = (key.public_pem()?, hex::encode(key.public().as_bytes()));
        let path = told_to(&project.tenant()?, project.root(), &key.path);
        let json = json!({"keyid": key.id(), "algorithm": "ed25519", "public": public, "pem": pem, "path": path});
        out.result(&json, || {
            if pem_only {
                return pem.trim_end().to_owned();
            }
            format!("keyid      {}\nalgorithm  ed25519\npublic     {public}\nfile       {path}", key.id())
        });
        Ok(0)
    }
}
