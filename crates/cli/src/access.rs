//! Tokens: made of random bytes, and told from wrong ones. Called by `actum token` and by whoever serves; keeps nothing, so that
//! a token that is revoked opens nothing from then on. What is not in its hands: which role may do what.

use actum_api::error;
use actum_contract::digest::Digest;
use actum_engine::Waiter;
use actum_ledger::access::{Access, HASH_DIGITS, TOKEN_DIGITS, Token, is_token};
use actum_ledger::journal::JournalError;
use actum_server::is_same;
use jiff::Timestamp;

use crate::failure::Failure;

/// How every token begins, so that it is known for one wherever it turns up.
const PREFIX: &str = "actum_";

/// Random bytes of a secret. It is written as hex.
const SECRET_BYTES: usize = 32;

/// What nothing hashes to, for ids that nobody has.
const NO_HASH: [u8; HASH_DIGITS] = [b'0'; HASH_DIGITS];

/// A token that was just made. Only whoever made it ever sees all of it.
pub(crate) struct Fresh {
    pub id: String,
    /// What may be kept of its secret.
    pub hash: String,
    /// The whole of it, to be shown once.
    pub text: String,
}

/// A new token.
pub(crate) fn fresh() -> Result<Fresh, Failure> {
    let mut bytes = [0; TOKEN_DIGITS / 2 + SECRET_BYTES];
    let cannot = |e| Failure::new(error::INTERNAL, format!("the system gives no random bytes: {e}"));
    getrandom::fill(&mut bytes).map_err(cannot)?;
    let (id, secret) = bytes.split_at(TOKEN_DIGITS / 2);
    let (id, secret) = (hex::encode(id), hex::encode(secret));
    let text = format!("{PREFIX}{id}_{secret}");
    Ok(Fresh { hash: hash_of(&secret), id, text })
}

/// Whose token this is, if it opens anything now. The same answer for whatever is wrong with it; only a store that does not
/// answer is told apart.
pub(crate) fn look_up(access: &dyn Access, waiter: &Waiter, text: &str) -> Result<Option<Token>, JournalError> {
    let Some((id, secret)) = parse(text) else { return Ok(None) };
    let found = waiter.wait(access.token(id))?;
    Ok(matching(found, secret, Timestamp::now().as_millisecond()))
}

/// Id and secret. What has another form is no token, and no secret either.
fn parse(text: &str) -> Option<(&str, &str)> {
    let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
    let is_hex = |text: &str| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    (is_token(id) && secret.len() == 2 * SECRET_BYTES && is_hex(secret)).then_some((id, secret))
}

/// The token, if the secret is its own and it is in force. Hashed and compared also where there is none: how long it takes says
/// nothing.
fn matching(found: Option<Token>, secret: &str, now_ms: i64) -> Option<Token> {
    let given = hash_of(secret);
    let kept = found.as_ref().map_or(&NO_HASH[..], |token| token.hash.as_bytes());
    let is_own = is_same(given.as_bytes(), kept);
    found.filter(|token| is_own && token.is_in_force(now_ms))
}

fn hash_of(secret: &str) -> String {
    Digest::sha256(secret.as_bytes()).to_hex()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use actum_contract::id::Tenant;
    use actum_ledger::access::{Action, Change, Role};
    use actum_ledger::draft;
    use actum_store::{Location, Older, Store};
    use actum_testkit::folder::Folder;

    use super::*;

    const NOW_MS: i64 = 1_000_000;

    fn token_of(fresh: &Fresh) -> Token {
        Token {
            id: fresh.id.clone(),
            tenant: Tenant::new("t").unwrap(),
            role: Role::Reader,
            name: "n".into(),
            hash: fresh.hash.clone(),
            expires_ms: None,
            is_revoked: false,
            n: 1,
        }
    }

    #[test]
    fn a_token_is_random_and_holds_its_id() {
        let all: Vec<_> = (0..100).map(|_| fresh().unwrap()).collect();
        assert_eq!(all.iter().map(|one| &one.id).collect::<HashSet<_>>().len(), 100);
        assert_eq!(all.iter().map(|one| &one.hash).collect::<HashSet<_>>().len(), 100);
        for Fresh { id, hash, text } in all {
            let (read, secret) = parse(&text).unwrap();
            assert_eq!((read, text.len()), (id.as_str(), 6 + 16 + 1 + 64));
            assert_eq!(hash_of(secret), hash);
            assert!(!text.contains(&hash));
        }
    }

    #[test]
    fn what_has_another_form_is_none() {
        let good = fresh().unwrap().text;
        assert!(parse(&good).is_some());
        let (head, tail) = good.split_at(good.len() - 1);
        for bad in [
            String::new(),
            "actum_".into(),
            "actum__".into(),
            head.into(),
            format!("{good}0"),
            format!("{head}g"),
            format!("{good}\n"),
            format!(" {good}"),
            format!("Actum{}", &good[5..]),
            good.to_uppercase(),
            good.replacen('_', "-", 2),
            good[6..].into(),
            format!("actum_{}{}", "é".repeat(8), &good[22..]),
            format!("{}{tail}", head.replace('_', "\0")),
            "x".repeat(10_000_000),
        ] {
            assert!(parse(&bad).is_none(), "{:.100}", bad);
        }
    }

    #[test]
    fn only_its_own_secret_opens_it_and_only_while_it_is_in_force() {
        let (ours, theirs) = (fresh().unwrap(), fresh().unwrap());
        let (_, secret) = parse(&ours.text).unwrap();
        let (_, other) = parse(&theirs.text).unwrap();
        let token = token_of(&ours);
        let enters = |token: Option<Token>, secret: &str| matching(token, secret, NOW_MS).is_some();
        assert!(enters(Some(token.clone()), secret));
        assert!(!enters(Some(token.clone()), other));
        assert!(!enters(None, secret));
        // Not even what is kept of it opens it.
        assert!(!enters(Some(token.clone()), &ours.hash));
        // Every place of the secret counts.
        for i in 0..secret.len() {
            let mut wrong = secret.to_owned();
            let digit = if &secret[i..=i] == "0" { "1" } else { "0" };
            wrong.replace_range(i..=i, digit);
            assert!(!enters(Some(token.clone()), &wrong), "{i}");
        }
        assert!(!enters(Some(Token { is_revoked: true, ..token.clone() }), secret));
        for (expires_ms, is_open) in [(NOW_MS + 1, true), (NOW_MS, false), (NOW_MS - 1, false), (i64::MIN, false)] {
            assert_eq!(enters(Some(Token { expires_ms: Some(expires_ms), ..token.clone() }), secret), is_open);
        }
        for damaged in ["", "0", &token.hash[..63], &format!("{}0", token.hash)] {
            assert!(!enters(Some(Token { hash: damaged.into(), ..token.clone() }), secret));
        }
    }

    #[test]
    fn a_revoked_token_opens_nothing_from_then_on() {
        let folder = Folder::new();
        let runtime = Waiter::runtime().unwrap();
        let location = Location::Sqlite(folder.join("actum.db"));
        let store: Arc<dyn Store> = runtime.block_on(actum_store::open(&location, Older::Migrate)).unwrap();
        let waiter = Waiter::new(runtime, Arc::<dyn Store>::clone(&store), Arc::<dyn Store>::clone(&store));
        let fresh = fresh().unwrap();
        let create = Change {
            tenant: Tenant::new("acme").unwrap(),
            token: fresh.id.clone(),
            n: 1,
            action: Action::Create,
            role: Role::Approver,
            name: "n".into(),
            hash: fresh.hash.clone(),
            expires_ms: None,
            actor: "ada".into(),
            reason: String::new(),
        };
        let append = |change: &Change| {
            let submission = draft::read_own(change.document());
            waiter.wait(store.append(submission)).unwrap();
        };
        assert_eq!(look_up(&*store, &waiter, &fresh.text).unwrap(), None);
        append(&create);
        let entered = look_up(&*store, &waiter, &fresh.text).unwrap().unwrap();
        assert_eq!((entered.tenant.as_str(), entered.role, entered.id), ("acme", Role::Approver, fresh.id.clone()));
        append(&Change { n: 2, action: Action::Revoke, ..create });
        assert_eq!(look_up(&*store, &waiter, &fresh.text).unwrap(), None);
        assert_eq!(look_up(&*store, &waiter, "anything"), Ok(None));
    }
}
