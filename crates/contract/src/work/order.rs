//! The order of work items: what depends on what, level by level.

use std::collections::{BTreeMap, BTreeSet};

use super::WorkItem;

/// Why items have no order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadOrder {
    #[error("two items are called {0}")]
    Twice(String),
    #[error("{item} depends on {unknown}, which is no item of this file{}", .near.as_ref().map(|near| format!("; did you mean {near}?")).unwrap_or_default())]
    Unknown { item: String, unknown: String, near: Option<String> },
    #[error("items depend on each other in a circle: {}", .0.join(" -> "))]
    Cycle(Vec<String>),
    #[error("there is no item {0}")]
    NoItem(String),
}

impl BadOrder {
    /// The item whose text is at fault.
    pub fn item(&self) -> &str {
        match self {
            Self::Twice(id) | Self::NoItem(id) => id,
            Self::Unknown { unknown, .. } => unknown,
            Self::Cycle(ids) => ids.first().map_or("", String::as_str),
        }
    }
}

/// Items by level: those of one level depend only on earlier ones, and may run at the same time. Within a level they
/// keep the order of the file.
pub fn levels(items: &[WorkItem]) -> Result<Vec<Vec<usize>>, BadOrder> {
    let mut by_id = BTreeMap::new();
    for (at, item) in items.iter().enumerate() {
        if by_id.insert(item.id.as_str(), at).is_some() {
            return Err(BadOrder::Twice(item.id.clone()));
        }
    }
    let mut waits = Vec::with_capacity(items.len());
    for item in items {
        let mut on = BTreeSet::new();
        for id in &item.dependencies {
            let Some(at) = by_id.get(id.as_str()) else {
                let near = by_id.keys().min_by_key(|known| crate::bad::distance(id, known));
                let near = near.filter(|known| crate::bad::distance(id, known) <= 1 + known.len() / 4);
                let near = near.map(|near| (*near).to_owned());
                return Err(BadOrder::Unknown { item: item.id.clone(), unknown: id.clone(), near });
            };
            on.insert(*at);
        }
        waits.push(on);
    }
    let mut done = vec![false; items.len()];
    let mut levels = Vec::new();
    while done.iter().any(|done| !done) {
        let level: Vec<usize> =
            (0..items.len()).filter(|at| !done[*at] && waits[*at].iter().all(|on| done[*on])).collect();
        if level.is_empty() {
            return Err(BadOrder::Cycle(cycle(items, &waits, &done)));
        }
        level.iter().for_each(|at| done[*at] = true);
        levels.push(level);
    }
    Ok(levels)
}

/// One circle among what is left: whoever follows dependencies there comes back.
fn cycle(items: &[WorkItem], waits: &[BTreeSet<usize>], done: &[bool]) -> Vec<String> {
    let mut path: Vec<usize> = Vec::new();
    let mut at = (0..items.len()).find(|at| !done[*at]);
    while let Some(here) = at {
        if let Some(first) = path.iter().position(|seen| *seen == here) {
            path.drain(..first);
            path.push(here);
            break;
        }
        path.push(here);
        at = waits[here].iter().copied().find(|on| !done[*on]);
    }
    path.into_iter().map(|at| items[at].id.clone()).collect()
}

/// The items with these ids and everything they depend on, in the order of the file. Without ids: all.
pub fn with_dependencies(items: Vec<WorkItem>, wanted: &[String]) -> Result<Vec<WorkItem>, BadOrder> {
    if wanted.is_empty() {
        return Ok(items);
    }
    let mut chosen: BTreeSet<String> = BTreeSet::new();
    let mut waiting: Vec<&String> = wanted.iter().collect();
    while let Some(id) = waiting.pop() {
        let item = items.iter().find(|item| item.id == *id).ok_or_else(|| BadOrder::NoItem(id.clone()))?;
        if chosen.insert(id.clone()) {
            waiting.extend(&item.dependencies);
        }
    }
    Ok(items.into_iter().filter(|item| chosen.contains(&item.id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::read_item;
    use serde_json::json;

    fn items(all: &[(&str, &[&str])]) -> Vec<WorkItem> {
        let item = |(id, on): &(&str, &[&str])| {
            read_item(&json!({"id": id, "agent_id": "agent-1", "description": "d", "dependencies": on})).unwrap()
        };
        all.iter().map(item).collect()
    }

    #[test]
    fn three_two_one() {
        let all = items(&[
            ("a0", &["a4", "a5"]),
            ("a1", &[]),
            ("a2", &[]),
            ("a3", &[]),
            ("a4", &["a1", "a2"]),
            ("a5", &["a3"]),
        ]);
        assert_eq!(levels(&all), Ok(vec![vec![1, 2, 3], vec![4, 5], vec![0]]));
        let some = with_dependencies(all, &["a5".to_owned()]).unwrap();
        assert_eq!(some.iter().map(|item| item.id.as_str()).collect::<Vec<_>>(), ["a3", "a5"]);
    }

    #[test]
    fn what_has_no_order_is_named() {
        let message = |all: &[(&str, &[&str])]| levels(&items(all)).unwrap_err().to_string();
        let circle = message(&[("x", &[]), ("a", &["x", "b"]), ("b", &["c"]), ("c", &["a"])]);
        assert_eq!(circle, "items depend on each other in a circle: a -> b -> c -> a");
        assert_eq!(message(&[("a", &["a"])]), "items depend on each other in a circle: a -> a");
        assert_eq!(
            message(&[("alpha", &[]), ("b", &["alhpa"])]),
            "b depends on alhpa, which is no item of this file; did you mean alpha?"
        );
        assert_eq!(message(&[("a", &[]), ("a", &[])]), "two items are called a");
        assert_eq!(with_dependencies(items(&[("a", &[])]), &["z".into()]), Err(BadOrder::NoItem("z".into())));
    }
}
