//! `actum webhook`: who is told of new entries of the ledger; added, listed, tried, removed. Its secret is shown once, when it is added.
//! `actum serve` delivers.

use actum_adapters::Http;
use actum_adapters::webhook::{Delivered, Delivery, host_of, secret_of};
use actum_api::error;
use actum_contract::id::check_name;
use actum_ledger::draft;
use actum_ledger::journal::Outcome;
use actum_ledger::webhook::{self, Action, TYPES_MAX, URL_BYTES_MAX, WEBHOOKS_MAX, Webhook};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Ended;
use super::spend::time;
use super::tool::Why;
use crate::args::Global;
use crate::config::Config;
use crate::failure::Failure;
use crate::hook::{ANSWER_WITHIN, network, progress_of};
use crate::project::Project;
use crate::run::shop::Open;
use crate::tool::register::By;
use crate::ui::{Out, clean, table};

/// Random bytes of a secret, and of an id, which is written as hex.
const SECRET_BYTES: usize = 32;
const ID_BYTES: usize = 8;
const TYPE_BYTES_MAX: usize = 200;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Tell an address of every entry from now on; its secret is shown this once
    Add(Add),
    /// The webhooks there are
    List,
    /// One of them: how far it has come, what went wrong
    Show {
        /// Its id, as `actum webhook list` shows it
        id: String,
    },
    /// Tell it nothing more
    Remove {
        /// Its id
        id: String,
        #[command(flatten)]
        why: Why,
    },
    /// Send it a signed delivery of type webhook.test, now
    Test {
        /// Its id
        id: String,
    },
    /// Go on with one that was disabled, from where it was
    Enable {
        /// Its id
        id: String,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Add {
    /// Where to: https://…
    #[arg(value_name = "URL")]
    url: String,
    /// Only entries of this type; may be given several times, or with commas between
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// By what name it is known [default: its host]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    why: Why,
}

impl Verb {
    pub(crate) fn run(self, global: &Global, out: &mut Out) -> Ended {
        let open = Open::new(Project::find(global)?, out)?;
        match self {
            Self::Add(wanted) => add(&open, wanted, out),
            Self::List => list(&open, out),
            Self::Show { id } => {
                let webhook = found(&open, &id)?;
                let shown = shown(&webhook);
                out.result(&shown, || text(&webhook));
                Ok(0)
            }
            Self::Remove { id, why } => {
                let webhook = found(&open, &id)?;
                record(&open, &webhook, Action::Remove, &why.by())?;
                let is_new = open.waiter.wait(open.webhooks.remove_webhook(&open.tenant, &id))?;
                out.result(&json!({"id": id, "removed": is_new}), || format!("removed {id}"));
                Ok(0)
            }
            Self::Test { id } => test(&open, &found(&open, &id)?, out),
            Self::Enable { id, why } => enable(&open, found(&open, &id)?, why, out),
        }
    }
}

fn add(open: &Open, wanted: Add, out: &mut Out) -> Ended {
    let usage = |message: String| Failure::new(error::USAGE, message);
    let Some(host) = host_of(&wanted.url).filter(|_| wanted.url.len() <= URL_BYTES_MAX) else {
        let failure = usage(format!("{:?} is no address that can be told", clean(&wanted.url)));
        return Err(
            failure.hint(format!("write https://HOST/PATH, without a user in it, at most {URL_BYTES_MAX} bytes"))
        );
    };
    if let Some(Err(e)) = wanted.name.as_deref().map(check_name) {
        return Err(usage(format!("--name {e}")));
    }
    let is_type = |kind: &String| (1..=TYPE_BYTES_MAX).contains(&kind.len()) && !kind.chars().any(char::is_control);
    if wanted.types.len() > TYPES_MAX || !wanted.types.iter().all(is_type) {
        return Err(usage(format!("--types are at most {TYPES_MAX} names of at most {TYPE_BYTES_MAX} bytes")));
    }
    reachable(open, &wanted.url)?;
    let mut random = [0; SECRET_BYTES + ID_BYTES];
    let cannot = |e| Failure::new(error::INTERNAL, format!("the system gives no random bytes: {e}"));
    getrandom::fill(&mut random).map_err(cannot)?;
    let (id, secret) = random.split_at(ID_BYTES);
    let mut made = Webhook {
        tenant: open.tenant.clone(),
        id: hex::encode(id),
        name: wanted.name.unwrap_or(host),
        url: wanted.url,
        types: wanted.types,
        secret: secret_of(secret),
        created_ms: Timestamp::now().as_millisecond(),
        cursor: 0,
        failures: 0,
        failing_since_ms: None,
        next_try_ms: 0,
        last_error: None,
        disabled: None,
        changes: 0,
    };
    // The first entry that it is told of is the one behind that of its own making.
    made.cursor = record(open, &made, Action::Add, &wanted.why.by())? + 1;
    made.changes = 1;
    let mut shown = shown(&made);
    shown["secret"] = json!(made.secret);
    let (secret, summary) = (made.secret.clone(), format!("webhook {} to {}", made.id, clean(&made.name)));
    if !open.waiter.wait(open.webhooks.add_webhook(made))? {
        let failure = usage(format!("there are {WEBHOOKS_MAX} webhooks already"));
        return Err(failure.hint("`actum webhook list` shows them, `actum webhook remove ID` makes room"));
    }
    out.result(&shown, || secret);
    out.remark(&format!("{summary}; keep its secret, it is not shown again. `actum serve` delivers"));
    Ok(0)
}

/// That nobody adds what could never be told. A name that is not found now may be found later.
fn reachable(open: &Open, url: &str) -> Result<(), Failure> {
    let config = open.project.config()?;
    match http(&config)?.client_for(&network(&config), url) {
        Err(problem) if problem.stage == actum_adapters::Stage::Denied => {
            let failure = Failure::new(error::FORBIDDEN, problem.message);
            Err(failure.hint(
                "addresses of this machine and its network have to be named: [server] webhook_hosts in actum.toml",
            ))
        }
        _ => Ok(()),
    }
}

fn http(config: &Config) -> Result<Http, Failure> {
    Http::for_others(config.sandbox.hosts.clone()).map_err(|e| Failure::new(error::INTERNAL, e.to_string()))
}

fn list(open: &Open, out: &mut Out) -> Ended {
    let all = open.waiter.wait(open.webhooks.webhooks(&open.tenant))?;
    let shown: Vec<Value> = all.iter().map(shown).collect();
    out.result(&json!({ "webhooks": shown }), || {
        if all.is_empty() {
            return "no webhooks; `actum webhook add URL` adds one".into();
        }
        let row = |w: &Webhook| {
            let types = if w.types.is_empty() { "all".to_owned() } else { clean(&w.types.join(",")) };
            vec![w.id.clone(), status(w).into(), w.cursor.to_string(), w.failures.to_string(), types, clean(&w.name)]
        };
        table(&["ID", "STATUS", "NEXT", "FAILURES", "TYPES", "NAME"], &all.iter().map(row).collect::<Vec<_>>())
    });
    Ok(0)
}

fn test(open: &Open, webhook: &Webhook, out: &mut Out) -> Ended {
    let config = open.project.config()?;
    let now = Timestamp::now();
    let data = json!({"webhook": webhook.id, "name": webhook.name});
    let body = json!({"type": "webhook.test", "timestamp": now.to_string(), "data": data}).to_string();
    let delivery = Delivery {
        url: &webhook.url,
        secret: &webhook.secret,
        id: &format!("msg_{}_test_{}", webhook.id, now.as_nanosecond()),
        at_s: now.as_second(),
        body: &body,
        within: ANSWER_WITHIN,
    };
    let (status, why) = match http(&config)?.deliver(&network(&config), &delivery) {
        Delivered::Status(status) => (Some(status), None),
        Delivered::Lost(why) | Delivered::Denied(why) => (None, Some(why)),
    };
    let is_good = status.is_some_and(|status| (200..300).contains(&status));
    let shown = json!({"id": webhook.id, "delivered": is_good, "status": status, "problem": why});
    out.result(&shown, || match (status, why) {
        (Some(status), _) => format!("it answered {status}"),
        (None, why) => clean(&why.unwrap_or_default()),
    });
    Ok(u8::from(!is_good))
}

fn enable(open: &Open, mut webhook: Webhook, why: Why, out: &mut Out) -> Ended {
    let is_new = webhook.disabled.is_some();
    if is_new {
        record(open, &webhook, Action::Enable, &why.by())?;
        webhook.changes += 1;
        (webhook.failures, webhook.failing_since_ms, webhook.disabled) = (0, None, None);
        let progress = progress_of(&webhook, 0);
        let (tenant, id) = (open.tenant.clone(), webhook.id.clone());
        open.waiter.wait(open.webhooks.settle_webhook(tenant, id, None, progress))?;
    }
    let mut shown = shown(&webhook);
    shown["changed"] = json!(is_new);
    out.result(&shown, || format!("{} {}", if is_new { "goes on with" } else { "was not disabled:" }, webhook.id));
    Ok(0)
}

/// One of this tenant's; of others there is none.
fn found(open: &Open, id: &str) -> Result<Webhook, Failure> {
    let is_id = id.len() == 2 * ID_BYTES && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let webhook = if is_id { open.waiter.wait(open.webhooks.webhook(&open.tenant, id))? } else { None };
    webhook.ok_or_else(|| {
        let shown: String = clean(id).chars().take(2 * ID_BYTES).collect();
        let failure = Failure::new(error::NOT_FOUND, format!("there is no webhook {shown:?}"));
        failure.hint("`actum webhook list` shows those there are")
    })
}

/// Puts a change on record; its place.
fn record(open: &Open, webhook: &Webhook, action: Action, by: &By) -> Result<u64, Failure> {
    let host = host_of(&webhook.url).unwrap_or_default();
    let document = webhook::document(webhook, action, &host, &by.actor, &by.reason);
    match open.waiter.wait(open.waiter.journal.append(draft::read_own(document)))? {
        Outcome::Created { seq, .. } | Outcome::Idempotent { seq, .. } => Ok(seq),
        Outcome::Refused(refusal) => {
            Err(Failure::new(refusal.code.name(), refusal.message.clone()).details(refusal.details()))
        }
    }
}

fn status(webhook: &Webhook) -> &'static str {
    match webhook {
        Webhook { disabled: Some(_), .. } => "disabled",
        Webhook { failures: 0, .. } => "active",
        _ => "failing",
    }
}

/// A webhook as others may see it: without its secret, and of its address only where it leads.
fn shown(webhook: &Webhook) -> Value {
    json!({
        "id": webhook.id, "name": webhook.name, "host": host_of(&webhook.url), "types": webhook.types,
        "status": status(webhook), "next": webhook.cursor, "failures": webhook.failures,
        "failing_since": webhook.failing_since_ms.map(time), "last_error": webhook.last_error,
        "disabled": webhook.disabled, "created_at": time(webhook.created_ms),
    })
}

fn text(webhook: &Webhook) -> String {
    let mut lines = vec![
        format!("{}  {}", webhook.id, clean(&webhook.name)),
        format!("  to        {}", clean(&host_of(&webhook.url).unwrap_or_default())),
        format!("  status    {}", status(webhook)),
        format!("  next      entry {}", webhook.cursor),
    ];
    if let Some(why) = &webhook.disabled {
        lines.push(format!("  disabled  {}", clean(why)));
    }
    if let Some(error) = &webhook.last_error {
        lines.push(format!("  failed    {} times in a row: {}", webhook.failures, clean(error)));
    }
    lines.join("\n")
}
