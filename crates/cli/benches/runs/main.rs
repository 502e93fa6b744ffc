//! What a run costs: no-op runs through the whole engine beside bare inserts, what a real run adds to its agent, and the
//! queue when it is long. `cargo xtask bench runs [noop|queue|real]`.

#![expect(clippy::expect_used, reason = "a benchmark that cannot go on has nothing to say")]

#[path = "../shared/measure.rs"]
mod measure;
mod noop;
mod queue;
mod real;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|word| word == name);
    if is_wanted("noop") {
        noop::sqlite();
        noop::postgres();
    }
    if is_wanted("queue") {
        queue::claims();
        queue::takeover();
    }
    if is_wanted("real") {
        real::overhead();
    }
}
