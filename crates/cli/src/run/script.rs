//! The script agent: a declared list of edits and executions, each one a tool operation that is counted.

use std::collections::BTreeMap;

use actum_contract::agent::{Operation, Script};
use actum_contract::digest::Digest;
use actum_kernel::{Act, Desk, End, State, ToolOp};
use actum_sandbox::Ended;
use actum_workspace::{Edit, Node, TreePath, lookup};
use serde_json::json;

use super::act::failure_of;
use super::hands::{Done, RunHands};
use super::program::{Program, Ran};
use crate::failure::Failure;

impl RunHands {
    /// Plays what a script has for an act: how it ended, what was done, how long the programs took.
    pub(super) fn play(
        &mut self,
        script: &Script,
        state: &State,
        act: &Act,
        left_ms: u64,
        ops_left: u64,
        desk: &dyn Desk,
    ) -> Done<(End, Vec<ToolOp>, u64)> {
        let operations = match &act.correction {
            None => script.steps.get(&act.step.id).or_else(|| script.steps.get("*")),
            Some(correction) => {
                let at = usize::try_from(correction.number).unwrap_or(1).saturating_sub(1);
                script.corrections.get(at).or_else(|| script.corrections.last())
            }
        };
        let Some(operations) = operations.cloned() else {
            let message = format!("the script has nothing for {}", act.step.id);
            return Ok((End::Failed { exit_code: None, message }, Vec::new(), 0));
        };
        let mut current = Self::digest(state.current.as_ref())?;
        let (mut ops, mut took_ms) = (Vec::new(), 0);
        for operation in &operations {
            if ops.len() as u64 >= ops_left {
                return Ok((End::OutOfOps { why: None }, ops, took_ms));
            }
            if desk.stopped().is_some() {
                return Ok((End::Failed { exit_code: None, message: "it was asked to stop".into() }, ops, took_ms));
            }
            let (op, failed) = match operation {
                Operation::Run { command } => {
                    let left = left_ms.saturating_sub(took_ms).max(1);
                    let (op, failed, took) = self.run_tool(command, state, left, desk)?;
                    took_ms += took;
                    // What the program changed is what the next edit stands on.
                    self.stage(state)?;
                    if let Some(stage) = &self.stage {
                        current = stage.seal(&self.workspace)?.after;
                    }
                    (op, failed)
                }
                edit => match self.edit(edit, state, current) {
                    Ok(after) => {
                        current = after;
                        (done(edit, "success", None, None), None)
                    }
                    Err(failure) => {
                        let message = format!("{} failed: {}", edit.name(), failure.message);
                        (done(edit, "error", None, None), Some(End::Failed { exit_code: None, message }))
                    }
                },
            };
            ops.push(op);
            if let Some(end) = failed {
                return Ok((end, ops, took_ms));
            }
        }
        Ok((End::Done, ops, took_ms))
    }

    fn run_tool(
        &mut self,
        command: &[String],
        state: &State,
        left_ms: u64,
        desk: &dyn Desk,
    ) -> Done<(ToolOp, Option<End>, u64)> {
        let (op, ran) = self.run_program(command, state, left_ms, desk)?;
        let name = command.first().map_or("", String::as_str);
        let end = match (&ran.report.ended, failure_of(&ran)) {
            (Ended::TimedOut, _) => Some(End::TimedOut),
            (_, None) => None,
            (_, Some((exit_code, why))) => {
                Some(End::Failed { exit_code, message: format!("tool {name} failed: {why}") })
            }
        };
        Ok((op, end, ran.took_ms))
    }

    /// A program in a cell on the stage, and what the trace says of it.
    pub(super) fn run_program(
        &mut self,
        command: &[String],
        state: &State,
        left_ms: u64,
        desk: &dyn Desk,
    ) -> Done<(ToolOp, Ran)> {
        let agent = self.facts.agreement.agent.clone();
        let environment = BTreeMap::from([("ACTUM_RUN_ID".to_owned(), self.facts.run.clone())]);
        let program = Program {
            command,
            agent: &agent,
            environment,
            exchange: None,
            offer: None,
            left_ms,
            is_agents: self.repeats.is_none(),
        };
        let grants = self.grants(state)?;
        let ran = program.run(&self.shop, grants, &self.folder.log(), desk)?;
        self.remember(&ran);
        let exit_code = match &ran.report.ended {
            Ended::Exited(code) => Some(*code),
            _ => None,
        };
        let output = Digest::blake3(format!("{}{}", ran.output.digest, ran.errors.digest).as_bytes()).to_hex();
        let status = if failure_of(&ran).is_none() { "success" } else { "error" };
        let operation = Operation::Run { command: command.to_vec() };
        Ok((done(&operation, status, exit_code, Some(output)), ran))
    }

    /// Makes an edit on a stage that is in the state `current`; the state it is in then.
    pub(super) fn edit(&mut self, operation: &Operation, state: &State, current: Digest) -> Done<Digest> {
        let bad = |message: String| Failure::new(actum_api::error::INPUT, message);
        let path_of = |path: &str| {
            let inside = TreePath::new(path.trim_start_matches("./").as_bytes());
            inside.filter(|path| !path.is_root()).ok_or_else(|| bad(format!("{path:?} is no path in the workspace")))
        };
        self.stage(state)?;
        let blobs = self.workspace.blobs();
        let edit = match operation {
            Operation::Write { path, content, executable } => Edit {
                path: path_of(path)?,
                content: Some(content.clone().into_bytes()),
                executable: executable.then_some(true),
            },
            Operation::Replace { path, old, new } => {
                let tree_path = path_of(path)?;
                let node: Option<Node> = lookup(blobs, current, &tree_path)?;
                let node =
                    node.filter(|node| node.kind.is_file()).ok_or_else(|| bad(format!("{path} is not there")))?;
                let text =
                    String::from_utf8(blobs.read(node.digest)?).map_err(|_| bad(format!("{path} is no text")))?;
                let found = text.matches(old.as_str()).count();
                if found != 1 || old.is_empty() {
                    return Err(bad(format!("the text occurs {found} times in {path}, expected once")));
                }
                Edit {
                    path: tree_path,
                    content: Some(text.replacen(old.as_str(), new, 1).into_bytes()),
                    executable: None,
                }
            }
            Operation::Delete { path } => Edit { path: path_of(path)?, content: None, executable: None },
            Operation::Run { .. } => return Err(bad("a program is no edit".into())),
        };
        let Some(stage) = &self.stage else { return Err(bad("there is no stage".into())) };
        Ok(stage.edit(&self.workspace, current, &[edit])?)
    }
}

/// An operation as the trace keeps it: what was asked, and what came of it.
pub(super) fn done(operation: &Operation, status: &str, exit_code: Option<u8>, output: Option<String>) -> ToolOp {
    let input = match operation {
        Operation::Write { path, content, executable } => {
            json!({"path": path, "content": Digest::blake3(content.as_bytes()).to_hex(), "executable": executable})
        }
        Operation::Replace { path, old, new } => json!({
            "path": path, "old": Digest::blake3(old.as_bytes()).to_hex(), "new": Digest::blake3(new.as_bytes()).to_hex(),
        }),
        Operation::Delete { path } => json!({"path": path}),
        Operation::Run { command } => json!({"command": command}),
    };
    ToolOp { name: operation.name().to_owned(), input, status: status.to_owned(), exit_code, output }
}
