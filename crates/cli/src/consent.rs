//! Publishing files that programs obey (D-508). What Actum itself obeys is published by a person at the keyboard who confirms
//! the diff, and by nobody else. What other programs obey is published so too, or after an approval that showed the diff.

use std::io::{BufRead as _, IsTerminal as _};
use std::path::{Path, PathBuf};

use actum_api::error;
use actum_contract::agent::{Agent, AgentKind};
use actum_contract::blob::Blobs;
use actum_contract::canon;
use actum_contract::digest::Digest;
use actum_workspace::{Change, CompletePatch, Node, complete_patch, deltas};
use serde_json::{Value, json};

use crate::approval::{self, Request};
use crate::config::Config;
use crate::failure::Failure;
use crate::obeyed_place::Place;
use crate::protect::{self, ObeyedChanges};
use crate::run::{ADMISSION, Open};
use crate::terminal::Marker;
use crate::ui::{Out, clean, count, stdin_is_terminal};

/// As many hexadecimal digits of the digest of the changes confirm them.
const DIGITS: usize = 16;
/// The longest diff that an approval shows. A longer one can be confirmed at the keyboard only.
const APPROVAL_DIFF_BYTES_MAX: usize = 256 << 10;
/// Paths that are named in a message.
const PATHS_SHOWN: usize = 5;

/// A publication that somebody asks for.
pub(crate) struct Publishing<'a> {
    pub open: &'a Open,
    pub blobs: &'a dyn Blobs,
    /// The folder of the workspace; none if it is a shared one.
    pub folder: Option<&'a Path>,
    /// The state that the changes start from, and the one that they lead to.
    pub base: Digest,
    pub after: Digest,
    /// The present state, onto which they are published: a link in it may lead to what they change.
    pub onto: Digest,
    pub changes: &'a [Change],
    /// `publish` or `undo`, and the run or stage that it is about.
    pub verb: &'static str,
    pub of: &'a str,
}

/// The files of the project that Actum reads because `actum.toml` names them, and `actum.toml` itself.
pub(crate) struct OwnFiles {
    files: Vec<PathBuf>,
    /// Folders with all that is in them: expected outputs of tools, and what cells find programs in.
    folders: Vec<PathBuf>,
    /// Programs that trusted agents start, seen from the workspace.
    programs: Vec<PathBuf>,
}

impl OwnFiles {
    pub(crate) fn of(root: &Path, config: &Config) -> Self {
        let mut files: Vec<PathBuf> = config.files.iter().map(|file| root.join(file)).collect();
        files.push(root.join(crate::active_config::NAME));
        let trusted = || config.agents.values().filter(|config| is_trusted(&config.agent));
        let words = trusted().flat_map(|config| words_of(&config.agent));
        let programs: Vec<PathBuf> = words.map(|word| plain(Path::new(word))).collect();
        files.extend(programs.iter().map(|word| root.join(word)).filter(|path| path.is_file()));
        // What is a link, or behind one, is in the file that it leads to.
        let real: Vec<PathBuf> = files.iter().filter_map(|file| file.canonicalize().ok()).collect();
        files.extend(real);
        let mut folders = vec![root.join("tools/golden")];
        folders.extend(config.sandbox.dependencies.iter().filter(|folder| folder.starts_with(root)).cloned());
        Self { files, folders, programs }
    }

    /// Whether Actum obeys a path of a workspace.
    pub(crate) fn contain(&self, workspace: Option<&Path>, path: &Path) -> bool {
        // Also a folder or link above one of them: replaced, it leads to another file.
        let is_ours = |path: PathBuf| {
            self.files.iter().any(|file| file.starts_with(&path))
                || self.folders.iter().any(|folder| path.starts_with(folder) || folder.starts_with(&path))
        };
        protect::is_own(path)
            || self.programs.iter().any(|program| program.starts_with(path))
            || workspace.is_some_and(|folder| is_ours(folder.join(path)))
    }
}

/// Whether an agent has secrets, or sees more of the machine than others: changed, its programs would have the same.
fn is_trusted(agent: &Agent) -> bool {
    let is_reference = |value: &String| value.starts_with("env:") || value.starts_with("file:");
    agent.environment.values().any(is_reference) || agent.filesystem == "elevated" || agent.network == "open"
}

/// Returns the words of an agent's command that may name a file.
fn words_of(agent: &Agent) -> impl Iterator<Item = &String> {
    let command = match &agent.kind {
        AgentKind::Command { command, .. } => command.as_slice(),
        _ => &[],
    };
    command.iter().filter(|word| !word.is_empty())
}

/// A path without `.` in it.
fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != std::path::Component::CurDir).collect()
}

/// Changes of files that programs obey.
struct Obeyed {
    changes: Vec<Change>,
    /// Those that Actum obeys.
    own: Vec<String>,
    patch: CompletePatch,
}

impl Obeyed {
    fn of(publishing: &Publishing<'_>) -> Result<Self, Failure> {
        let project = &publishing.open.project;
        let root = project.root().canonicalize().unwrap_or_else(|_| project.root().to_owned());
        // What cannot be read now is not obeyed either: Actum refuses to start on it.
        let files = OwnFiles::of(&root, &project.config().unwrap_or_default());
        let trees = [publishing.base, publishing.after];
        let found = ObeyedChanges::find(
            publishing.blobs,
            trees,
            (Place { folder: publishing.folder, root: &root }, Some(publishing.onto)),
            publishing.changes,
            ADMISSION,
        )?;
        let (mut changes, mut own) = (Vec::new(), Vec::new());
        for change in deltas(publishing.changes) {
            let path = change.path.as_path();
            let is_own = files.contain(publishing.folder, path);
            if is_own {
                own.push(change.path.to_string());
            }
            if is_own || found.contain(&change.path) {
                changes.push(change.clone());
            }
        }
        let patch = complete_patch(publishing.blobs, &changes)?;
        Ok(Self { changes, own, patch })
    }

    /// Returns what a consent is bound to: each path with its kind and content before and after. The text of the diff would
    /// not do: contents that are too long are not in it.
    fn identity(&self) -> Value {
        let side = |node: &Option<Node>| node.map(|node| json!([format!("{:?}", node.kind), node.digest.to_hex()]));
        let change = |change: &Change| json!([change.path.to_string(), side(&change.before), side(&change.after)]);
        self.changes.iter().map(change).collect()
    }

    fn digits(&self) -> String {
        let text = canon::canonical(&self.identity()).unwrap_or_default();
        Digest::blake3(&text).to_hex()[..DIGITS].to_owned()
    }

    /// Returns the whole diff, marked as on a terminal. Fails if an approver could not see all of it.
    fn shown_to_approver(&self, of: &str) -> Result<String, Failure> {
        let diff = self.marked();
        let why = match self.patch.left_out.first() {
            Some(path) => format!("{} is too long to be shown", clean(&path.to_string())),
            None if diff.len() > APPROVAL_DIFF_BYTES_MAX => {
                format!(
                    "the diff of {} bytes is longer than the {APPROVAL_DIFF_BYTES_MAX} that an approval shows",
                    diff.len()
                )
            }
            None => return Ok(diff),
        };
        Err(refused(self, &why)
            .hint(format!("`actum apply {of} --protected` where the project is shows the diff and asks")))
    }

    fn marked(&self) -> String {
        let mut marker = Marker::default();
        marker.mark(&self.patch.text) + &marker.end()
    }

    fn paths(&self) -> Vec<String> {
        self.changes.iter().map(|change| change.path.to_string()).collect()
    }

    fn named(&self) -> String {
        let paths = self.paths();
        let shown = paths.iter().take(PATHS_SHOWN).map(|path| clean(path)).collect::<Vec<_>>().join(", ");
        match paths.len().checked_sub(PATHS_SHOWN).filter(|more| *more > 0) {
            Some(more) => format!("{shown} and {more} more"),
            None => shown,
        }
    }
}

/// Fails unless a person has agreed to publish the files among the changes that programs obey. `confirmed`: the value of
/// `--protected`, empty if it was given without one.
pub(crate) fn require(publishing: &Publishing<'_>, confirmed: Option<&str>, out: &Out) -> Result<(), Failure> {
    let obeyed = Obeyed::of(publishing)?;
    if obeyed.changes.is_empty() {
        return Ok(());
    }
    let project = &publishing.open.project;
    let (home, tenant, of) = (project.folder()?, project.tenant()?, publishing.of);
    let agreed = json!({"changes": obeyed.identity(), "of": of});
    let request = |diff: &str| Request {
        tool: format!("{} {of}", publishing.verb),
        tenant: &tenant,
        wants: obeyed.paths().iter().map(|path| format!("to change {}", clean(path))).collect(),
        agreed: &agreed,
        configured: Value::Null,
        exact: json!({"paths": obeyed.paths(), "diff": diff}),
        shown: json!({
            "source": protect::remark_on(deltas(publishing.changes).map(|change| change.path.as_path())),
        }),
    };
    if project.seat().is_some() {
        if let Some(path) = obeyed.own.first() {
            let message = format!("Actum obeys {}: only a person at the keyboard publishes it", clean(path));
            return Err(Failure::new(error::PROTECTED, message)
                .details(json!({"paths": obeyed.own}))
                .hint(format!("`actum apply {of} --protected` where the project is shows the diff and asks")));
        }
        return approval::take(&home, &request(&obeyed.shown_to_approver(of)?)).map(drop);
    }
    match confirmed {
        Some("") => ask(&obeyed, of, out),
        // A program can repeat a digest. Files that Actum itself obeys need the person.
        Some(_) if !obeyed.own.is_empty() => {
            Err(refused(&obeyed, "Actum obeys some of them, so a person has to confirm")
                .hint(format!("`actum apply {of} --protected` on a terminal shows the diff and asks")))
        }
        Some(digits) if digits == obeyed.digits() => Ok(()),
        Some(_) => Err(refused(&obeyed, "the diff is not the one that was confirmed")
            .hint(format!("`actum apply {of} --protected` shows the diff as it is now"))),
        None if obeyed.own.is_empty() && approval::taken(&home, &request(""))?.is_some() => Ok(()),
        None => Err(refused(&obeyed, "a person has to confirm the diff")
            .hint(format!("`actum apply {of} --protected` shows the diff and asks"))),
    }
}

fn refused(obeyed: &Obeyed, why: &str) -> Failure {
    Failure::new(error::PROTECTED, format!("programs obey {}: {why}", obeyed.named()))
        .details(json!({"paths": obeyed.paths(), "own": obeyed.own, "digest": obeyed.digits()}))
}

/// Shows the diff and asks on the terminal. Where there is none, the digest of what was shown confirms it.
fn ask(obeyed: &Obeyed, of: &str, out: &Out) -> Result<(), Failure> {
    out.aside(obeyed.marked().trim_end());
    for path in &obeyed.patch.left_out {
        out.aside(&format!("{} is too long to be shown: `actum diff {of}` and its files do", clean(&path.to_string())));
    }
    if !stdin_is_terminal() || !std::io::stderr().is_terminal() {
        let failure = refused(obeyed, "there is no terminal to ask on");
        return Err(match obeyed.own.is_empty() {
            true => {
                failure.hint(format!("`actum apply {of} --protected={}` confirms exactly this diff", obeyed.digits()))
            }
            false => failure.hint("run the command on a terminal: files that Actum obeys need a person"),
        });
    }
    let files = count(obeyed.changes.len() as u64, "file", "files");
    out.aside(&format!("programs obey {}\npublish {files} as shown? type yes:", obeyed.named()));
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    match answer.trim() {
        "yes" => Ok(()),
        _ => Err(refused(obeyed, "the diff was not confirmed")),
    }
}
