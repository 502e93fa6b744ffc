//! `actum key`: who signs.

use actum_api::error;
use actum_ledger::receipt::key_id;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Ended;
use crate::args::Global;
use crate::failure::Failure;
use crate::key::{Key, TrustedKeys};
use crate::project::Project;
use crate::run::Open;
use crate::seat::told_to;
use crate::ui::{Out, table};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the public key that signs for this project; it is made on first use
    Show(Show),
    /// Sign with a new key; what the old one signed stays valid. Workers that are running take it when they are started again
    Rotate,
    /// List the keys whose receipts are believed, and those that other machines only announce
    List,
    /// Believe receipts that a key has signed, here and wherever this project's own key is trusted
    Trust(Trust),
}

#[derive(Debug, Args)]
pub(crate) struct Trust {
    /// The id of a key that the ledger announces, or a public key (PEM)
    key: String,
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
            Self::List => return list(&Open::new(project, out)?, out),
            Self::Trust(trust) => return trust.run(&Open::new(project, out)?, out),
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

fn list(open: &Open, out: &mut Out) -> Ended {
    let own = Key::find(&open.project)?.map(|key| key.id());
    let TrustedKeys { keys, unknown } = Key::known_to(open)?;
    let mut trusted: Vec<String> = keys.iter().map(key_id).collect();
    trusted.sort();
    trusted.dedup();
    let mut rows: Vec<(String, &str, String)> = Vec::new();
    for id in trusted {
        let role = if own.as_ref() == Some(&id) { "own" } else { "trusted" };
        rows.push((id, role, String::new()));
    }
    rows.extend(unknown.into_iter().map(|(id, place)| (id, "announced", place)));
    let json: Vec<Value> =
        rows.iter().map(|(id, role, place)| json!({"keyid": id, "role": role, "place": place})).collect();
    out.result(&json!({"keys": json}), || {
        let rows: Vec<_> =
            rows.iter().map(|(id, role, place)| vec![id.clone(), (*role).to_owned(), place.clone()]).collect();
        table(&["KEYID", "ROLE", "PLACE"], &rows)
    });
    Ok(0)
}

impl Trust {
    fn run(self, open: &Open, out: &mut Out) -> Ended {
        if open.project.seat().is_some() {
            let message = "keys are trusted by a person at the keyboard, not over a server";
            return Err(Failure::new(error::FORBIDDEN, message).hint("run `actum key trust` in the project"));
        }
        let key = Key::trust(open, &self.key)?;
        out.result(&json!({"keyid": key_id(&key)}), || format!("trusted {}", key_id(&key)));
        Ok(0)
    }
}
