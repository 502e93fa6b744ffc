//! The one table of errors: code ↔ name ↔ exit code ↔ HTTP status ↔ page in `docs/errors/`.
//!
//! Codes and names are never renamed or reused. `cargo xtask generate` writes the pages from here.

use serde_json::{Value, json};

/// One kind of error that a person or a program can meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorRow {
    /// Stable, with a page of its own: `A0201`.
    pub code: &'static str,
    /// Stable, what programs branch on: `VALIDATION_ERROR`.
    pub name: &'static str,
    pub exit: u8,
    pub status: u16,
    pub title: &'static str,
    pub cause: &'static str,
    pub remedy: &'static str,
}

impl ErrorRow {
    /// The status over HTTP of what could be read and is refused for what it says: such a request is not a bad one.
    pub const fn status_once_read(&self) -> u16 {
        if self.status == BAD_REQUEST { UNPROCESSABLE } else { self.status }
    }
}

/// The request is not of the form that the OpenAPI document shows.
const BAD_REQUEST: u16 = 400;
/// It is, and cannot be done.
const UNPROCESSABLE: u16 = 422;

const fn row(
    code: &'static str,
    name: &'static str,
    (exit, status): (u8, u16),
    title: &'static str,
    cause: &'static str,
    remedy: &'static str,
) -> ErrorRow {
    ErrorRow { code, name, exit, status, title, cause, remedy }
}

/// The error with this name. Names are constants in the code, so a missing one is a mistake found by the tests.
pub fn named(name: &str) -> &'static ErrorRow {
    TABLE.iter().find(|row| row.name == name).unwrap_or(&TABLE[0])
}

/// `{error: {code, message, details, hint?}}`, with the page's code beside it.
pub fn json(row: &ErrorRow, message: &str, details: &Value, hint: Option<&str>) -> Value {
    let mut error = json!({"code": row.name, "ref": row.code, "message": message, "details": details});
    if let Some(hint) = hint {
        error["hint"] = json!(hint);
    }
    json!({ "error": error })
}

pub const INTERNAL: &str = "INTERNAL_ERROR";
pub const USAGE: &str = "USAGE";
pub const FILE: &str = "FILE_UNREADABLE";
pub const INPUT: &str = "INPUT_INVALID";
pub const CONFIG: &str = "CONFIG_INVALID";
pub const IDEMPOTENCY_CONFLICT: &str = "IDEMPOTENCY_CONFLICT";
pub const MISMATCH: &str = "CONTRACT_MISMATCH";
pub const UNSUPPORTED: &str = "UNSUPPORTED_CONTRACT";
pub const NOT_FOUND: &str = "NOT_FOUND";
pub const STORE_UNAVAILABLE: &str = "STORE_UNAVAILABLE";
pub const STORE_UNUSABLE: &str = "STORE_UNUSABLE";
pub const STORE_DAMAGED: &str = "STORE_DAMAGED";
pub const LEDGER_DAMAGED: &str = "LEDGER_DAMAGED";
pub const CLOCK_SKEW: &str = "CLOCK_SKEW";
pub const MACHINE_FAULT: &str = "MACHINE_FAULT";
pub const KEY: &str = "KEY_UNUSABLE";
pub const CHECK_FAILED: &str = "CHECK_FAILED";
pub const PUBLISH_CONFLICT: &str = "PUBLISH_CONFLICT";
pub const UNSAVED: &str = "UNSAVED_CHANGES";
pub const WORKSPACE_REFUSED: &str = "WORKSPACE_REFUSED";
pub const PROTECTED: &str = "PROTECTED_FILES";
pub const WORKSPACE_REPLACED: &str = "WORKSPACE_REPLACED";
pub const DISK_FULL: &str = "DISK_FULL";
pub const STORAGE_QUOTA: &str = "STORAGE_QUOTA_EXCEEDED";
pub const CONTENT_DAMAGED: &str = "CONTENT_DAMAGED";
pub const BLOBS_UNAVAILABLE: &str = "BLOBS_UNAVAILABLE";
pub const BLOBS_REFUSED: &str = "BLOBS_REFUSED";
pub const STAGING: &str = "STAGING_UNAVAILABLE";
pub const STAGE_BUSY: &str = "STAGE_BUSY";
pub const ALREADY_APPLIED: &str = "ALREADY_APPLIED";
pub const SANDBOX_UNAVAILABLE: &str = "SANDBOX_UNAVAILABLE";
pub const EXECUTION_REFUSED: &str = "EXECUTION_REFUSED";
pub const APPROVAL_NEEDED: &str = "APPROVAL_NEEDED";
pub const EXECUTION_EXISTS: &str = "EXECUTION_EXISTS";
pub const EXECUTION_INTERRUPTED: &str = "EXECUTION_INTERRUPTED";
pub const RUN_STATE: &str = "RUN_STATE";
pub const TOOL_DENIED: &str = "TOOL_DENIED";
pub const REGISTRY_CONFLICT: &str = "REGISTRY_CONFLICT";
pub const APPROVAL_DENIED: &str = "APPROVAL_DENIED";
pub const SPEND_DENIED: &str = "SPEND_DENIED";
pub const SPEND_CONFLICT: &str = "SPEND_CONFLICT";
pub const PREDICT_FAILED: &str = "PREDICT_FAILED";
pub const SIGNATURE_CONFLICT: &str = "SIGNATURE_CONFLICT";
pub const ARTIFACT_INCOMPATIBLE: &str = "ARTIFACT_INCOMPATIBLE";
pub const POINTER_CONFLICT: &str = "POINTER_CONFLICT";
pub const ROLLBACK_UNAVAILABLE: &str = "ROLLBACK_UNAVAILABLE";
pub const REGRESSION: &str = "REGRESSION";
pub const UNAUTHORIZED: &str = "UNAUTHORIZED";
pub const FORBIDDEN: &str = "FORBIDDEN";
pub const TOO_MANY_REQUESTS: &str = "TOO_MANY_REQUESTS";
pub const ANSWER_LATE: &str = "ANSWER_LATE";

#[rustfmt::skip]
pub const TABLE: &[ErrorRow] = &[
    row("A0000", INTERNAL, (70, 500), "Actum itself failed",
        "A fault in Actum, not in what you gave it. Nothing was published half.",
        "Run the command again with `-v` and report the message with the command and the version."),
    row("A0001", USAGE, (2, 400), "The command line is not usable",
        "A command, flag or value is unknown, missing or out of place.",
        "Run the command with `--help`; it lists every flag with an example."),
    row("A0002", FILE, (2, 400), "A file cannot be read or written",
        "The file does not exist, is not readable, is too large, or its folder is missing.",
        "Check the path and its permissions. `-` reads standard input where a command allows it."),
    row("A0003", NOT_FOUND, (7, 404), "There is no such thing",
        "The id is unknown in this store, or belongs to another tenant.",
        "List what there is (`actum ledger list`), check `--store` and `--tenant`."),
    row("A0004", CHECK_FAILED, (1, 409), "A check failed",
        "The check ran to its end and the answer was no.",
        "The message says which part failed and how it looks; follow its hint."),
    row("A0101", INPUT, (2, 400), "A document is not what it should be",
        "The text is not JSON, YAML or TOML, or breaks the strict profile of canonical JSON: a duplicate key, an integer beyond ±(2^53−1), a number that is not finite, a lone surrogate, invalid UTF-8, nesting deeper than 127 levels.",
        "Go to the line and column of the message. Write large integers as strings."),
    row("A0102", CONFIG, (2, 400), "An execution config has bad fields",
        "A field is unknown, has a value of another type, or lies outside its range. Values are never clamped. Fields come from `--set`, `--config`, a work file, a request, or `ACTUM_…` variables.",
        "`actum contract explain` shows every field with its range and where its value comes from."),
    row("A0103", MISMATCH, (5, 409), "The stored contract is not the expected one",
        "Either the metadata of a run is incomplete or altered, so that the recomputed contract differs, or a resume asked for a config other than the persisted one.",
        "For a resume: drop the flags to keep the contract, `--override-execution-config` to change this run, `--fork` to start another. Altered metadata cannot be repaired: start a new run."),
    row("A0104", UNSUPPORTED, (5, 409), "This runtime does not know the contract's versions",
        "The run was made by a runtime with another contract schema or other policy versions. Running it here could branch differently.",
        "Use an Actum of the version that made the run, or start a new run of the same work under the present versions: `actum resume RUN --fork`. The fork starts from the beginning and keeps the limits of the recorded contract."),
    row("A0201", "VALIDATION_ERROR", (2, 400), "An entry breaks the rules of its form",
        "A field is missing, of the wrong type, or contradicts another. `details.violations` lists all of them.",
        "Mend every violation listed; `actum schema execution-event` describes the form."),
    row("A0202", IDEMPOTENCY_CONFLICT, (6, 409), "A different entry stands under the same identity",
        "The event (execution, attempt, state) or the entry's own id is recorded already, with another payload or lineage. `details.violations` names the differing paths.",
        "Send the same document again to get the same answer, or use a new attempt, execution or id."),
    row("A0203", "UNKNOWN_LINEAGE", (2, 422), "A dependency cannot be found",
        "A ledger id does not exist for that tenant, or was created after `snapshotAt`.",
        "Append the dependency first, or take a later snapshot."),
    row("A0204", "INVALID_TRANSITION", (6, 409), "The state machine does not allow this event",
        "planned is followed by running; running by succeeded, failed or cancelled; failed by planned or running of a higher attempt; succeeded and cancelled by nothing. An execution begins with planned, or with failed when the gate blocks.",
        "`actum ledger list --execution ID` shows what was recorded; go on from there or start a new execution."),
    row("A0205", "COHERENCE_BLOCKED", (3, 409), "The coherence gate forbids this state",
        "Inputs are stale, or partial under the policy `block`, or the execution may not go beyond planned without `dryRun`.",
        "`actum ledger coherence ID…` says what is wrong with the inputs."),
    row("A0206", LEDGER_DAMAGED, (1, 409), "The ledger is not what was recorded",
        "An entry was altered, removed, moved or cut off after it was recorded, or a checkpoint does not fit. The message names the first bad entry.",
        "Restore from a backup taken before the damage and compare: `actum store backup` copies verify on their own."),
    row("A0301", STORE_UNAVAILABLE, (1, 503), "The store does not answer",
        "The database cannot be reached, is locked for too long, the disk is full, or the connection broke. What was under way may or may not have been recorded.",
        "Try again: appending the same event twice is safe. For PostgreSQL check the URL and that the server runs."),
    row("A0302", STORE_UNUSABLE, (2, 400), "The store cannot be used by this program",
        "The file is not an Actum store, the store was made by a newer Actum, or it is older and shared.",
        "Name another store with `--store`, use a newer Actum, or run `actum store migrate`."),
    row("A0303", STORE_DAMAGED, (1, 500), "The store holds something Actum did not write",
        "A row that everything else relies on is broken.",
        "Run `actum store check`. If only projections are broken `actum store rebuild` mends them; else restore a backup."),
    row("A0304", KEY, (2, 400), "The signing key cannot be used",
        "The key file is unreadable, open to other users, or not an Ed25519 private key in PKCS#8 PEM.",
        "Restore the file, or move it away: a new key is made on the next use, and earlier signatures keep naming the old one."),
    row("A0305", CLOCK_SKEW, (1, 503), "This machine's clock differs too much from the store's",
        "The store's clock is the reference for the times that rules compare. This process's clock differs from it by more than 5 seconds, so it begins no run. Nothing was changed.",
        "Set the machine's clock, for example by NTP, and repeat the command. `actum doctor` shows the difference."),
    row("A0306", MACHINE_FAULT, (1, 503), "The machine failed",
        "This process or machine has no more open files, processes or memory, or its disk is read-only or reports errors. The run is not to blame.",
        "Close other programs or raise the limits of this one (`ulimit -n`, memory of the service), check the disk (`dmesg`), and try again."),
    row("A0401", PUBLISH_CONFLICT, (6, 409), "The same paths were changed meanwhile",
        "Between the moment the workspace was frozen and now, a person or another run changed a path that is to be changed. Nothing was written; the result is kept. `details.paths` lists the paths.",
        "`actum diff ID` shows the kept result. Put your own change aside and repeat `actum apply ID`, or drop the stage and start again on the present state."),
    row("A0402", UNSAVED, (6, 409), "The workspace holds changes that no snapshot has",
        "Restoring a snapshot would overwrite work that could not be brought back.",
        "`actum snapshot freeze` keeps it first; `--discard` goes on without asking (and still keeps a snapshot of what was there)."),
    row("A0403", WORKSPACE_REFUSED, (2, 422), "The folder cannot be used as it is",
        "It holds a socket, a pipe or a device, a file that keeps changing while it is read, or a stage holds a hard link to a file outside; or it is a whole home folder or disk, a folder of the system, or one outside the project.",
        "Ignore what has no content (`.gitignore` or `--exclude`), stop what is writing, or name a smaller folder. `actum run --allow-workspace` allows one outside the project."),
    row("A0404", DISK_FULL, (1, 507), "There is no room left on the disk",
        "The disk, or your share of it, is full. The workspace is as it was.",
        "Make room: `actum snapshot gc --max-bytes SIZE` gives up old snapshots, `actum stage list` shows stages that can be dropped."),
    row("A0405", CONTENT_DAMAGED, (1, 500), "A stored content is missing or damaged",
        "A pack below `.actum/blobs` was changed or cut off, or contents were removed from there by hand.",
        "`actum snapshot check` lists what is bad. Freeze again while the files are still in the workspace, or restore `.actum/blobs` from a backup."),
    row("A0406", STAGING, (1, 501), "This machine cannot stage that way",
        "The kernel or the file system does not offer what was asked for with `--mode`, or the helper could not be started.",
        "`actum doctor` says what this machine offers and how to get the rest; without `--mode` the best way is chosen."),
    row("A0407", STAGE_BUSY, (6, 409), "A program is still running in the stage",
        "A program started by `actum stage exec`, or something it left running, may still write to the stage. Publishing or removing it now would lose that.",
        "Wait for the program or end it, then try again. `actum diff ID` shows what there is so far."),
    row("A0408", ALREADY_APPLIED, (6, 409), "The stage was applied already",
        "Its result has been published; a stage is published once.",
        "`actum undo ID` takes it back, and an undo can be undone. For more work make a new stage."),
    row("A0409", BLOBS_UNAVAILABLE, (1, 503), "The object store does not answer",
        "The object store behind the project cannot be reached, is overloaded, or broke off, and stayed so for 90 seconds. What was to be kept is in the local folder and is sent by the next command that keeps something.",
        "Try again later. `actum doctor` says whether the object store can be used."),
    row("A0410", BLOBS_REFUSED, (2, 500), "The object store says no",
        "The keys are wrong or may not do this, there is no such bucket or container, the region is another one, or a folder is not writable. Asking again would change nothing.",
        "Check `[blobs]` of actum.toml, `ACTUM_BLOBS` and the variables with the keys; then `actum doctor`."),
    row("A0411", WORKSPACE_REPLACED, (6, 409), "The folder is not the one that the run was submitted for",
        "Since the run was submitted, its workspace or a folder above it has become a link or another folder. Following it could lead out of the project, so nothing was read or written there.",
        "Look at what stands there now. If it is meant, submit the work again: the folder is then taken as it is."),
    row("A0501", SANDBOX_UNAVAILABLE, (1, 503), "There is no sandbox, or not all of it",
        "This machine does not let Actum build the cell, or a limit that was asked for cannot be enforced here. Nothing was run.",
        "`actum doctor` says what is missing and how to get it. A wall that may be missing is named in `[sandbox] weaker` of actum.toml."),
    row("A0502", EXECUTION_REFUSED, (3, 403), "The execution is not allowed",
        "One or more of the checks IV-01 to IV-05 found something: a tool that is on no allowlist, a text for a shell, a path that leads out, a bad variable, too much input. Nothing was run.",
        "Each violation names its check and the field. Tools are allowed in `[tools]` of actum.toml."),
    row("A0503", APPROVAL_NEEDED, (8, 428), "A person has to agree first",
        "The execution asks for a level (elevated, open) that waits for an approval.",
        "`actum approvals list` shows what waits; `actum approve ID` agrees, once or for a time. Then run the command again."),
    row("A0504", EXECUTION_EXISTS, (6, 409), "There was such an execution already",
        "The contract names an execution id that has been used. An id stands for one execution.",
        "Leave `execution_id` out, or choose another. `actum logs ID` shows what the earlier one did."),
    row("A0505", EXECUTION_INTERRUPTED, (1, 500), "An execution was ended from outside",
        "The cell or Actum was killed while the program ran. What it had put out is kept; what it had changed stays changed.",
        "`actum logs ID` shows what it had put out. Look at the folders it may write to, and run it again."),
    row("A0506", PROTECTED, (3, 403), "Programs obey some of the files",
        "The result changes files that Actum, git, an editor, a shell, an agent or CI obeys. They are published only after a person has seen their diff: those of Actum at the keyboard, others also by an approval.",
        "`actum apply ID --protected` shows the diff and asks. Over a server, `apply` leaves a request that an approver answers."),
    row("A0601", RUN_STATE, (6, 409), "The run is not in a state for that",
        "A run that is running cannot be resumed or forked, one that is over cannot be cancelled, and one that was cancelled is over for good; or another process has just changed it.",
        "`actum status RUN` shows where it stands. `actum resume RUN --fork` starts a new run from one that is over."),
    row("A0701", TOOL_DENIED, (3, 403), "The tool may not be called",
        "It is not registered, not approved, blocked, or not among those the agent was given. What is not allowed is denied.",
        "`actum tool list` shows what is registered and how it stands. `actum tool approve ID` approves the version in force."),
    row("A0702", REGISTRY_CONFLICT, (6, 409), "The registry has something else there",
        "A version is registered with other content, another command has changed the item meanwhile, or something still relies on it.",
        "A version never changes: give new content a new version. Otherwise look at it again, and repeat the change."),
    row("A0703", APPROVAL_DENIED, (3, 403), "A person said no",
        "The call waited for a person, and the answer was no. It holds until it expires.",
        "`actum approvals list` shows what was decided. Ask for less, or ask again when it has expired."),
    row("A0801", SPEND_DENIED, (3, 403), "The policy says no",
        "There is no authorization, the budget or a limit would be exceeded, the permission was revoked or has expired, or the model has no price. Nothing was asked and nothing was spent; a receipt says why.",
        "`actum policy explain RECEIPT` shows which rule it was. `actum spend list` shows what is allowed; `actum spend authorize` allows more."),
    row("A0802", SPEND_CONFLICT, (6, 409), "What was set aside is in another state",
        "The call was settled already, was reserved with another amount, is still under way, or has an unknown outcome.",
        "`actum spend reservations` shows where it stands. `actum spend reconcile CALL --commit AMOUNT | --release` settles what is unknown."),
    row("A0803", PREDICT_FAILED, (1, 502), "The model gave no usable answer",
        "The provider could not be reached or failed, the answer did not fit the output schema after one repair, or a limit of the strategy was reached before there was one.",
        "`actum trace show RECEIPT` shows what was asked and answered. Check the provider in actum.toml, the schema, and the limits of the program template."),
    row("A0804", SIGNATURE_CONFLICT, (6, 409), "The signature is registered with other content",
        "A signature never changes once it is registered: receipts name it by its hashes.",
        "Give it the next version: `namespace/name.v2`."),
    row("A0901", ARTIFACT_INCOMPATIBLE, (1, 409), "The artifact was made for another form of the signature",
        "An artifact carries the hashes of schema, prompt and program of the signature it was made for, and those of the registered signature are others. Nothing was asked.",
        "`actum artifact show ID` compares them. Compile it again for the signature as it is, or name another artifact."),
    row("A0902", POINTER_CONFLICT, (6, 409), "Another command has moved the pointer",
        "Every change of a pointer has a number, and of two who make the same one only one is recorded; or the pointer does not stand at the revision named by `--if`.",
        "The message says who did what. Look at it with `actum pointer show SIGNATURE`, and make the change again if it is still wanted."),
    row("A0903", ROLLBACK_UNAVAILABLE, (6, 409), "There is no state to go back to",
        "The pointer stands at the first state it ever had, or the revision named by `--to` is not one of its earlier ones.",
        "`actum pointer history SIGNATURE` shows the states there were; `actum pointer set SIGNATURE --primary ID` makes a new one."),
    row("A0904", REGRESSION, (1, 409), "The artifact is not good enough",
        "Its score is lower than `--min-score`, or it is worse than the one it was compared with by more than `--max-drop`.",
        "`actum eval --show EVAL` shows the results example by example. Compile again with other candidates, or lower the bar."),
    row("A1001", UNAUTHORIZED, (3, 401), "The server does not know who asks",
        "The request has no token, or one that opens nothing: mistyped, revoked, over, or of another server. The answer is the same for all of these.",
        "Send `Authorization: Bearer TOKEN`, or set `ACTUM_TOKEN`. `actum token list` at the server shows which are active; `actum token create` makes one."),
    row("A1002", FORBIDDEN, (3, 403), "The token's role does not allow this",
        "A reader looks; an operator looks, submits and runs; an approver looks, approves and denies; an admin does everything. Nothing was done.",
        "Use a token of another role: `actum token create --role ROLE` at the server makes one."),
    row("A1003", TOO_MANY_REQUESTS, (1, 429), "Too many requests",
        "More requests arrived with one token, or more connections were open, than the server takes at a time. Nothing was done.",
        "Wait as long as `Retry-After` says, and send the same request again."),
    row("A1005", ANSWER_LATE, (4, 504), "The server has no answer in time",
        "The command behind the request has worked for longer than a request may take: a minute to look, an hour to do. It comes to its end all the same, and what it does is recorded.",
        "Look whether it is done (`actum status`, `actum list`) before asking again; ask for less at a time."),
    row("A1006", STORAGE_QUOTA, (3, 507), "A quota of storage is reached",
        "The tenant or the token keeps as much as `tenant_storage_mb` or `token_storage_mb` of `[server]` allows. Nothing was kept.",
        "The server's owner can raise the quota and reload, or remove old runs and snapshots (`actum store gc`). Answers remark on it from 80 % on."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_are_unique_sorted_and_well_formed() {
        assert!(TABLE.is_sorted_by(|a, b| a.code < b.code));
        for row in TABLE {
            assert!(
                row.code.len() == 5 && row.code.starts_with('A') && row.code[1..].bytes().all(|b| b.is_ascii_digit())
            );
            assert_eq!(TABLE.iter().filter(|r| r.name == row.name).count(), 1, "{}", row.name);
            assert!(matches!(row.exit, 1..=8 | 70), "{}", row.name);
            assert!((400..600).contains(&row.status));
            assert_eq!(named(row.name), row);
        }
    }

    #[test]
    fn every_name_used_elsewhere_has_a_row() {
        for name in [
            INTERNAL,
            USAGE,
            FILE,
            INPUT,
            CONFIG,
            MISMATCH,
            UNSUPPORTED,
            NOT_FOUND,
            PUBLISH_CONFLICT,
            UNSAVED,
            WORKSPACE_REFUSED,
            WORKSPACE_REPLACED,
            PROTECTED,
            DISK_FULL,
            CONTENT_DAMAGED,
            BLOBS_REFUSED,
            STAGING,
            STAGE_BUSY,
            ALREADY_APPLIED,
            SANDBOX_UNAVAILABLE,
            EXECUTION_REFUSED,
            APPROVAL_NEEDED,
            EXECUTION_EXISTS,
            EXECUTION_INTERRUPTED,
            RUN_STATE,
            STORE_UNAVAILABLE,
            BLOBS_UNAVAILABLE,
            STORE_UNUSABLE,
            STORE_DAMAGED,
            LEDGER_DAMAGED,
            CLOCK_SKEW,
            MACHINE_FAULT,
            KEY,
            CHECK_FAILED,
            ARTIFACT_INCOMPATIBLE,
            POINTER_CONFLICT,
            ROLLBACK_UNAVAILABLE,
            UNAUTHORIZED,
            FORBIDDEN,
            TOO_MANY_REQUESTS,
        ] {
            assert_eq!(named(name).name, name);
        }
    }

    #[test]
    fn the_json_form() {
        let value = json(named(USAGE), "no such flag", &Value::Null, Some("try --help"));
        assert_eq!(
            value,
            json!({"error": {"code": "USAGE", "ref": "A0001", "message": "no such flag", "details": null, "hint": "try --help"}})
        );
    }
}
