//! `actum token`: who may ask the server, as whom, how long; made, listed, revoked. A token is shown once, when it is made.

use actum_api::error;
use actum_contract::id::{Tenant, check_name};
use actum_ledger::access::{Action, Change, Role, Token};
use actum_ledger::draft;
use actum_ledger::journal::Outcome;
use actum_ledger::refusal::{Code, Refusal};
use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Ended;
use super::spend::{duration, time};
use super::tool::Why;
use crate::access::{Fresh, fresh};
use crate::args::Global;
use crate::failure::Failure;
use crate::project::Project;
use crate::run::shop::Open;
use crate::ui::{Out, clean, table};

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum AsRole {
    /// May look
    Reader,
    /// May look, submit and run
    Operator,
    /// May look, approve and deny
    Approver,
    /// May do everything, also make and revoke tokens
    Admin,
}

impl AsRole {
    const fn role(self) -> Role {
        match self {
            Self::Reader => Role::Reader,
            Self::Operator => Role::Operator,
            Self::Approver => Role::Approver,
            Self::Admin => Role::Admin,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Make a token and show it, this once
    Create(Box<Create>),
    /// The tokens there are, also those that open nothing any more
    List {
        #[command(flatten)]
        of: Of,
    },
    /// Take a token back: it opens nothing from now on
    Revoke {
        /// Its id, as `actum token list` shows it
        id: String,
        #[command(flatten)]
        of: Of,
        #[command(flatten)]
        why: Why,
    },
}

/// Whose token.
#[derive(Debug, Args)]
pub(crate) struct Of {
    /// Whose [default: local]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// The role of the token
    #[arg(long, value_enum)]
    role: AsRole,
    #[command(flatten)]
    of: Of,
    /// By what name it is known; what is done with it is done in this name [default: its id]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Good for so long: 30m, 12h, 7d [default: until it is revoked]
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    #[command(flatten)]
    why: Why,
}

impl Verb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let open = Open::new(Project::find(global)?, out)?;
        match self {
            Self::Create(wanted) => create(&open, *wanted, out),
            Self::List { of } => list(&open, &of.named(&open)?, out),
            Self::Revoke { id, of, why } => revoke(&open, &id, &of.named(&open)?, why, out),
        }
    }
}

impl Of {
    fn named(self, open: &Open) -> Result<Tenant, Failure> {
        let Some(name) = self.tenant else { return Ok(open.tenant.clone()) };
        Tenant::new(name).map_err(|e| Failure::new(error::USAGE, format!("--tenant {e}")))
    }
}

fn create(open: &Open, wanted: Create, out: &mut Out) -> Ended {
    let tenant = wanted.of.named(open)?;
    if let Some(Err(e)) = wanted.name.as_deref().map(check_name) {
        return Err(Failure::new(error::USAGE, format!("--name {e}")));
    }
    let expires_ms = until(open, wanted.expires.as_deref().map(duration).transpose()?)?;
    let Fresh { id, hash, text } = fresh()?;
    let by = wanted.why.by();
    let change = Change {
        tenant,
        name: wanted.name.unwrap_or_else(|| id.clone()),
        token: id,
        n: Action::Create.n(),
        action: Action::Create,
        role: wanted.role.role(),
        hash,
        expires_ms,
        actor: by.actor,
        reason: by.reason,
    };
    append(open, &change)?.map_err(|refusal| failure_of(&refusal))?;
    let Change { token: id, tenant, role, name, expires_ms, .. } = change;
    let until = expires_ms.map(time);
    let shown = json!({
        "token": text, "id": id, "role": role.word(), "tenant": tenant.as_str(), "name": name, "expires_at": until,
    });
    out.result(&shown, || text);
    let until = until.map(|at| format!(" until {at}")).unwrap_or_default();
    out.remark(&format!("token {id}: {role} of {}{until}; keep it, it is not shown again", clean(tenant.as_str())));
    Ok(0)
}

/// When a token is over that is to be good for so long. One that is made with another does not outlive it.
fn until(open: &Open, wanted: Option<i64>) -> Result<Option<i64>, Failure> {
    let wanted = wanted.map(|ms| Timestamp::now().as_millisecond() + ms);
    let Some(maker) = open.project.token() else { return Ok(wanted) };
    let maker = open.waiter.wait(open.access.token(maker))?;
    let maker = maker.ok_or_else(|| Failure::new(error::UNAUTHORIZED, "the token opens nothing"))?;
    match (maker.expires_ms, wanted) {
        (Some(end), Some(later)) if later > end => {
            let message =
                format!("a token does not outlive the one it is made with, which is good until {}", time(end));
            Err(Failure::new(error::FORBIDDEN, message)
                .hint("give a shorter `expires`, or none: then it ends with that one"))
        }
        (end, wanted) => Ok(wanted.or(end)),
    }
}

fn list(open: &Open, tenant: &Tenant, out: &mut Out) -> Ended {
    let all = open.waiter.wait(open.access.tokens(tenant))?;
    let now_ms = Timestamp::now().as_millisecond();
    let shown: Vec<Value> = all.iter().map(|token| token_json(token, now_ms)).collect();
    out.result(&json!({ "tokens": shown }), || {
        if all.is_empty() {
            return format!("no tokens of {}", clean(tenant.as_str()));
        }
        let row = |token: &Token| {
            let (id, role, status) = (token.id.clone(), token.role.word().into(), status(token, now_ms).into());
            vec![id, role, status, token.expires_ms.map_or_else(|| "never".into(), time), clean(&token.name)]
        };
        table(&["ID", "ROLE", "STATUS", "EXPIRES", "NAME"], &all.iter().map(row).collect::<Vec<_>>())
    });
    Ok(0)
}

fn revoke(open: &Open, id: &str, tenant: &Tenant, why: Why, out: &mut Out) -> Ended {
    let token = found(open, id, tenant)?;
    let by = why.by();
    let is_new = !token.is_revoked && {
        let Token { id, role, name, hash, expires_ms, .. } = token;
        let change = Change {
            tenant: tenant.clone(),
            token: id,
            n: Action::Revoke.n(),
            action: Action::Revoke,
            role,
            name,
            hash,
            expires_ms,
            actor: by.actor,
            reason: by.reason,
        };
        match append(open, &change)? {
            Ok(is_new) => is_new,
            // Somebody else did at the same time.
            Err(refusal) if refusal.code == Code::IdempotencyConflict => false,
            Err(refusal) => return Err(failure_of(&refusal)),
        }
    };
    let token = found(open, id, tenant)?;
    let mut shown = token_json(&token, Timestamp::now().as_millisecond());
    shown["changed"] = json!(is_new);
    out.result(&shown, || format!("{} {}", if is_new { "revoked" } else { "was revoked already:" }, token.id));
    Ok(0)
}

/// A token of that tenant; of others there is none.
fn found(open: &Open, id: &str, tenant: &Tenant) -> Result<Token, Failure> {
    let found = match actum_ledger::access::is_token(id) {
        true => open.waiter.wait(open.access.token(id))?,
        false => None,
    };
    found.filter(|token| token.tenant == *tenant).ok_or_else(|| {
        // Whoever gives the whole of it by mistake does not find it in a log.
        let shown: String = clean(id).chars().take(actum_ledger::access::TOKEN_DIGITS).collect();
        let failure = Failure::new(error::NOT_FOUND, format!("there is no token {shown:?}"));
        failure.hint("`actum token list` shows the tokens there are; with --tenant, those of another tenant")
    })
}

/// Puts a change on record. Whether it was not there before; or why not.
fn append(open: &Open, change: &Change) -> Result<Result<bool, Refusal>, Failure> {
    let submission = draft::read_own(change.document());
    Ok(match open.waiter.wait(open.waiter.journal.append(submission))? {
        Outcome::Created { .. } => Ok(true),
        Outcome::Idempotent { .. } => Ok(false),
        Outcome::Refused(refusal) => Err(refusal),
    })
}

fn failure_of(refusal: &Refusal) -> Failure {
    Failure::new(refusal.code.name(), refusal.message.clone()).details(refusal.details())
}

fn status(token: &Token, now_ms: i64) -> &'static str {
    match token {
        _ if token.is_in_force(now_ms) => "active",
        _ if token.is_revoked => "revoked",
        _ => "expired",
    }
}

/// A token as others may see it, without what is kept of its secret.
fn token_json(token: &Token, now_ms: i64) -> Value {
    json!({
        "id": token.id, "role": token.role.word(), "tenant": token.tenant.as_str(), "name": token.name,
        "status": status(token, now_ms), "expires_at": token.expires_ms.map(time),
    })
}
