//! `actum recover`: complete or roll back what a crash left behind. For boot scripts; every other command does it too.

use clap::Args;

use super::Ended;
use crate::args::Global;
use crate::project::Project;
use crate::recover;
use crate::ui::Out;

#[derive(Debug, Args)]
#[command(
    after_help = "Every command that touches the project does this first. Use it where no other command runs, for example at boot."
)]
pub(crate) struct Recover {}

impl Recover {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let project = Project::find(global)?;
        let all = match recover::has_home(project.root()) {
            true => recover::recover_all(&project, out)?,
            false => Vec::new(),
        };
        let pending = all.iter().filter(|one| !one.is_settled).count();
        out.result(&recover::shown(&all), || match all.len() {
            0 => "nothing to recover".to_owned(),
            n => format!("{} of {n} publications are in order", n - pending),
        });
        Ok(u8::from(pending > 0))
    }
}
