//! Stores as older releases have left them, made of the steps that led there.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use actum_store::{Location, Older, Store, open};
use actum_testkit::postgres::shared_url;
use tokio::runtime::Runtime;

use crate::{opened, runtime};

/// What led to a version.
fn steps(dialect: &str, version: usize) -> String {
    let file = |n| format!("{}/migrations/{dialect}-{n:04}.sql", env!("CARGO_MANIFEST_DIR"));
    (1..=version).map(|n| fs::read_to_string(file(n)).unwrap()).collect()
}

pub(crate) fn sqlite(path: PathBuf, version: usize) -> Location {
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch(&steps("sqlite", version)).unwrap();
    let made = "INSERT INTO store (id) VALUES ('old'); PRAGMA application_id = 0x4163746d";
    connection.execute_batch(&format!("{made}; PRAGMA user_version = {version}")).unwrap();
    Location::Sqlite(path)
}

pub(crate) fn postgres(version: usize) -> Location {
    let (url, runtime) = (shared_url(), runtime());
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        runtime.spawn(connection);
        client.batch_execute("CREATE SCHEMA actum; SET search_path = actum").await.unwrap();
        client.batch_execute(&steps("postgres", version)).await.unwrap();
        let made = format!("INSERT INTO store (id, version) VALUES ('old', {version})");
        client.batch_execute(&made).await.unwrap();
    });
    Location::Postgres(url)
}

/// Opens one, which is refused unless it may be migrated.
pub(crate) fn migrated(location: &Location) -> (Runtime, Arc<dyn Store>) {
    let refused = runtime().block_on(open(location, Older::Refuse)).err().unwrap().to_string();
    assert!(refused.contains("actum store migrate"), "{refused}");
    opened(location)
}
