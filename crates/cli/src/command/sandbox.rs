//! `actum sandbox`: the cell alone, for any command.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::Ended;
use crate::ui::Out;

#[derive(Debug, Args)]
pub(crate) struct Sandbox {
    #[arg(long)]
    read: Vec<PathBuf>,
    #[arg(long)]
    write: Vec<PathBuf>,
    #[arg(long)]
    deny: Vec<PathBuf>,
    #[arg(long, default_value_t = 30000)]
    timeout_ms: u64,
    #[arg(long, default_value_t = 512)]
    memory_mb: u64,
    #[arg(long, default_value_t = 1)]
    cpu_cores: u32,
    #[arg(long, default_value_t = 10)]
    max_children: u32,
    #[arg(long)]
    no_fork: bool,
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

impl Sandbox {
    pub(crate) fn run(self, _out: &Out) -> Ended {
        use actum_sandbox::*;
        let here = std::env::current_dir().unwrap();
        let mut grants = vec![Grant { path: here.clone(), access: Access::Read }];
        grants.extend(self.read.iter().map(|p| Grant { path: p.canonicalize().unwrap(), access: Access::Read }));
        grants.extend(self.write.iter().map(|p| Grant { path: p.canonicalize().unwrap(), access: Access::Write }));
        grants.sort();
        let cell = Cell {
            program: self.program,
            pinned: None,
            environment: vec![
                ("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()),
                ("HOME".into(), "/home/actum".into()),
            ],
            folder: here,
            grants,
            deny: self.deny.iter().map(|p| p.canonicalize().unwrap()).collect(),
            limits: Limits {
                timeout_ms: Some(self.timeout_ms),
                grace_ms: 1000,
                memory_bytes: self.memory_mb << 20,
                cores: self.cpu_cores,
                children: self.max_children,
                fork: !self.no_fork,
                scratch_bytes: self.memory_mb << 20,
                disk_bytes: 1 << 30,
            },
            network: Network::Off,
            weaker: vec![],
        };
        use std::os::fd::AsFd as _;
        let files = Files {
            input: std::io::stdin().as_fd().try_clone_to_owned().unwrap(),
            output: std::io::stdout().as_fd().try_clone_to_owned().unwrap(),
            errors: std::io::stderr().as_fd().try_clone_to_owned().unwrap(),
        };
        let mut running = run_alone(cell, files).unwrap();
        match running.next() {
            Ok(News::Ended(report)) => {
                crate::ui::note(&format!("{report:?}"));
                Ok(match report.ended {
                    actum_sandbox::Ended::Exited(c) => c,
                    _ => 125,
                })
            }
            other => {
                crate::ui::note(&format!("{other:?}"));
                Ok(125)
            }
        }
    }
}
