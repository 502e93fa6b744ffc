//! The pages under `docs/errors` as text, from the one table in `actum-api`; `generate` writes them.
//! Never touches the disk, never adds a word that the table could hold.

use actum_api::ErrorRow;

/// Path and content of every page, the index last.
pub(crate) fn pages(table: &[ErrorRow]) -> Vec<(String, String)> {
    let mut pages: Vec<_> = table.iter().map(|row| (path(row.code), page(row))).collect();
    pages.push((path("README"), index(table)));
    pages
}

pub(crate) fn path(name: &str) -> String {
    format!("docs/errors/{name}.md")
}

fn page(row: &ErrorRow) -> String {
    let ErrorRow { code, name, exit, status, title, cause, remedy } = row;
    format!(
        "# {code}: {title}\n\n\
         | name | exit code | HTTP status |\n|---|---|---|\n| `{name}` | {exit} | {status} |\n\n\
         ## Cause\n\n{}\n\n## What to do\n\n{}\n\n{FOOTER}",
        cause.trim(),
        remedy.trim(),
    )
}

fn index(table: &[ErrorRow]) -> String {
    let mut text =
        String::from("# Errors\n\n| code | name | meaning | exit code | HTTP status |\n|---|---|---|---|---|\n");
    for ErrorRow { code, name, exit, status, title, .. } in table {
        text += &format!("| [{code}]({code}.md) | `{name}` | {title} | {exit} | {status} |\n");
    }
    text + "\n" + FOOTER
}

const FOOTER: &str = "---\n\nWritten by `cargo xtask generate` from the table in `crates/api`.\n";

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[ErrorRow] = &[ErrorRow {
        code: "A0101",
        name: "VALIDATION_ERROR",
        exit: 2,
        status: 422,
        title: "the input breaks a rule",
        cause: "A field is wrong.",
        remedy: "Correct it.\n",
    }];

    #[test]
    fn a_row_becomes_a_page_and_a_line_of_the_index() {
        let pages = pages(TABLE);
        assert_eq!(pages[0].0, "docs/errors/A0101.md");
        assert_eq!(
            pages[0].1,
            "# A0101: the input breaks a rule\n\n| name | exit code | HTTP status |\n|---|---|---|\n\
             | `VALIDATION_ERROR` | 2 | 422 |\n\n## Cause\n\nA field is wrong.\n\n## What to do\n\nCorrect it.\n\n---\n\n\
             Written by `cargo xtask generate` from the table in `crates/api`.\n"
        );
        assert_eq!(pages[1].0, "docs/errors/README.md");
        assert!(
            pages[1].1.contains("| [A0101](A0101.md) | `VALIDATION_ERROR` | the input breaks a rule | 2 | 422 |\n")
        );
    }
}
