//! What may be asked of the writer about answers that are kept, checked before it takes a place in the queue; and the words of
//! the tables about who may enter. Shared by the dialects, which fetch and write.

use actum_contract::id::Tenant;
use actum_ledger::access::{Kept, Role, Token, forgotten_before};
use actum_ledger::journal::JournalError;

use crate::request::{keys, texts};

/// The columns of a token and of a kept answer, in the order in which they are read.
pub(crate) const TOKEN: &str = "id, tenant, role, name, hash, expires_ms, revoked, n";
pub(crate) const KEPT: &str = "request_hash, status, content_type, body, exit, at_ms";

/// An answer to be kept, unless there is one.
#[derive(Debug)]
pub(crate) struct KeepRequest {
    pub tenant: Tenant,
    pub token: String,
    pub key: String,
    pub kept: Kept,
}

impl KeepRequest {
    pub(crate) fn new(tenant: &Tenant, token: &str, key: &str, kept: Kept) -> Result<Self, JournalError> {
        check_place(token, key)?;
        texts([&kept.request_hash, &kept.content_type])?;
        Ok(Self { tenant: tenant.clone(), token: token.to_owned(), key: key.to_owned(), kept })
    }

    /// About how much memory it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.key.len() + self.kept.body.len()
    }

    /// Those of its tenant from before this moment make room.
    pub(crate) fn forgets_before(&self) -> i64 {
        forgotten_before(self.kept.at_ms)
    }
}

/// Whether anything can be kept under this token and key.
pub(crate) fn check_place(token: &str, key: &str) -> Result<(), JournalError> {
    keys([&token.to_owned(), &key.to_owned()])
}

/// What a row says of a token, but for the words in it.
#[derive(Debug)]
pub(crate) struct TokenRow {
    pub id: String,
    pub tenant: String,
    pub role: String,
    pub name: String,
    pub hash: String,
    pub expires_ms: Option<i64>,
    pub is_revoked: bool,
    pub n: i64,
}

impl TokenRow {
    pub(crate) fn read(self) -> Result<Token, JournalError> {
        let Self { id, tenant, role, name, hash, expires_ms, is_revoked, n } = self;
        let damaged =
            |what: &str| JournalError::Damaged(format!("token {id} has no {what}: run `actum store rebuild`"));
        let role = Role::named(&role).ok_or_else(|| damaged("known role"))?;
        let tenant = Tenant::new(tenant).map_err(|_| damaged("usable tenant"))?;
        Ok(Token { id, tenant, role, name, hash, expires_ms, is_revoked, n: n as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_database_would_hold_is_turned_away() {
        let tenant = Tenant::new("t").unwrap();
        let kept = |content_type: &str| Kept {
            request_hash: "h".into(),
            status: 200,
            content_type: content_type.into(),
            body: vec![0],
            exit: 0,
            at_ms: 7,
        };
        assert!(KeepRequest::new(&tenant, "t", "a\0b", kept("x")).is_err());
        assert!(KeepRequest::new(&tenant, "t\0", "k", kept("x")).is_err());
        assert!(KeepRequest::new(&tenant, "t", &"x".repeat(1_000), kept("x")).is_err());
        assert!(KeepRequest::new(&tenant, "t", "k", kept("\0")).is_err());
        let request = KeepRequest::new(&tenant, "t", "k", kept("x")).unwrap();
        assert_eq!((request.bytes(), request.forgets_before()), (2, 7 - 86_400_000));
    }

    #[test]
    fn a_row_that_nobody_could_have_written_is_damage() {
        let row = |tenant: &str, role: &str| TokenRow {
            id: "0".repeat(16),
            tenant: tenant.into(),
            role: role.into(),
            name: "n".into(),
            hash: "h".into(),
            expires_ms: None,
            is_revoked: false,
            n: 1,
        };
        assert_eq!(row("t", "admin").read().unwrap().role, Role::Admin);
        for bad in [row("t", "root"), row("", "admin")] {
            assert!(bad.read().unwrap_err().to_string().contains("run `actum store rebuild`"));
        }
    }
}
