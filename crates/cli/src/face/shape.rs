//! What the command line knows of a route: the command it stands for, and of each argument what may be given for it. Read off
//! the definitions themselves, once; asked by `words` and `openapi`. It never runs anything.

use std::any::TypeId;
use std::sync::OnceLock;

use actum_api::route::{self, Place, ROUTES, Route};
use clap::{Arg, ArgAction, Args as _, Command, CommandFactory as _};

use crate::args::{Global, Parsed};

/// What may be given for an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Given or not.
    Switch,
    /// A whole number; whether it may be less than nothing.
    Whole {
        signed: bool,
    },
    Number,
    /// Money: a whole number, or text such as 2.50usd.
    Amount,
    /// Any JSON, which the command takes as text.
    Json,
    /// A word, or an object which the command takes as text.
    WordOrJson,
    Text,
    /// A document, which the command takes as a file.
    File,
}

/// An argument of a route.
#[derive(Debug)]
pub(super) struct Shape {
    pub name: &'static str,
    pub place: Place,
    pub kind: Kind,
    /// Whether it may be given several times.
    pub many: bool,
    pub arg: Arg,
}

/// A route with all that the command line knows of it.
#[derive(Debug)]
pub(super) struct Form {
    pub route: &'static Route,
    /// The command itself, with its words and texts.
    pub leaf: Command,
    /// The program with this command and no other: what is asked often is not looked for among all of them.
    pub parser: Command,
    pub shapes: Vec<Shape>,
}

impl Form {
    pub(super) fn shapes_in(&self, place: Place) -> impl Iterator<Item = &Shape> {
        self.shapes.iter().filter(move |shape| shape.place == place)
    }

    /// Whether the command asks who acts.
    pub(super) fn has_actor(&self) -> bool {
        self.leaf.get_arguments().any(|arg| arg.get_id() == ACTOR)
    }

    /// Its words in the order in which the command takes them.
    pub(super) fn positionals(&self) -> impl Iterator<Item = &str> {
        self.leaf.get_positionals().map(|arg| arg.get_id().as_str())
    }
}

/// The argument by which somebody says who he is.
pub(super) const ACTOR: &str = "actor";

/// All forms, in the order of the table.
pub(super) fn forms() -> &'static [Form] {
    static FORMS: OnceLock<Vec<Form>> = OnceLock::new();
    FORMS.get_or_init(|| {
        let root = Parsed::command();
        ROUTES.iter().filter_map(|route| form(&root, route)).collect()
    })
}

/// The form of a route; every route of the table has one, which the tests see to.
pub(super) fn of(route: &'static Route) -> Option<&'static Form> {
    forms().iter().find(|form| form.route.method == route.method && form.route.path == route.path)
}

fn form(root: &Command, route: &'static Route) -> Option<Form> {
    let leaf = route.command.iter().try_fold(root, |at, word| at.find_subcommand(word))?;
    let shapes = route.args.iter().map(|arg| shape(leaf, arg)).collect::<Option<Vec<_>>>()?;
    let nested = |below: Command, word: &&'static str| Command::new(*word).subcommand_required(true).subcommand(below);
    let above = route.command.split_last().map(|(_, above)| above).unwrap_or_default();
    let chain = above.iter().rev().fold(leaf.clone(), nested);
    let parser = Global::augment_args(Command::new("actum").disable_help_subcommand(true)).subcommand(chain);
    Some(Form { route, leaf: leaf.clone(), parser, shapes })
}

fn shape(leaf: &Command, wanted: &route::Arg) -> Option<Shape> {
    let arg = leaf.get_arguments().find(|arg| arg.get_id() == wanted.name)?.clone();
    let many = matches!(arg.get_action(), ArgAction::Append);
    let kind = match wanted.place {
        Place::Content | Place::File => Kind::File,
        Place::Path | Place::Query | Place::Field => kind_of(&arg),
    };
    Some(Shape { name: wanted.name, place: wanted.place, kind, many, arg })
}

fn kind_of(arg: &Arg) -> Kind {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return Kind::Switch;
    }
    let is = |of: &[TypeId]| of.iter().any(|one| arg.get_value_parser().type_id() == *one);
    if is(&[TypeId::of::<u8>(), TypeId::of::<u16>(), TypeId::of::<u64>(), TypeId::of::<usize>()]) {
        return Kind::Whole { signed: false };
    }
    if is(&[TypeId::of::<i64>()]) {
        return Kind::Whole { signed: true };
    }
    if is(&[TypeId::of::<f64>()]) {
        return Kind::Number;
    }
    match arg.get_value_names().and_then(|names| names.first()).map(|name| name.as_str()) {
        Some("AMOUNT") => Kind::Amount,
        Some("JSON") => Kind::Json,
        Some("METRIC") => Kind::WordOrJson,
        _ => Kind::Text,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Whether an argument names something on the disk of whoever runs the command.
    fn is_path(arg: &Arg) -> bool {
        arg.get_value_parser().type_id() == TypeId::of::<PathBuf>()
    }

    /// Arguments that lead to the disk of this machine.
    const PATHS: [&str; 12] = [
        "file",
        "files",
        "dir",
        "out",
        "record",
        "input",
        "config",
        "guard",
        "batch",
        "checkpoint",
        "stdin",
        "directory",
    ];
    /// What the commands take for text: the tests of `face` see to it that in a seat no file is meant.
    const MIXED: [(&str, &str); 5] =
        [("verify", "receipt"), ("replay", "run"), ("eval", "dataset"), ("diff", "id"), ("diff", "b")];

    #[test]
    fn every_route_stands_for_a_command_and_its_arguments() {
        assert_eq!(forms().len(), ROUTES.len(), "{:?}", ROUTES.iter().find(|route| of(route).is_none()));
        for form in forms() {
            let route = form.route;
            assert!(!form.leaf.has_subcommands() && !form.leaf.is_hide_set(), "{}", route.path);
            assert!(form.leaf.get_about().is_some(), "{}", route.path);
            for shape in &form.shapes {
                assert!(!shape.arg.is_global_set() && shape.name != ACTOR, "{} {}", route.path, shape.name);
                assert!(shape.arg.is_positional() || shape.arg.get_long().is_some(), "{} {}", route.path, shape.name);
            }
            for word in route.fixed {
                let is_switch = |arg: &Arg| {
                    arg.get_long() == word.strip_prefix("--") && matches!(arg.get_action(), ArgAction::SetTrue)
                };
                assert!(form.leaf.get_arguments().any(is_switch), "{} {word}", route.path);
            }
        }
    }

    #[test]
    fn what_a_command_needs_can_be_given() {
        for form in forms() {
            for arg in form.leaf.get_arguments().filter(|arg| arg.is_required_set()) {
                let is_given = form.shapes.iter().any(|shape| arg.get_id() == shape.name) || arg.get_id() == ACTOR;
                assert!(is_given, "{} {} lacks {}", form.route.method.word(), form.route.path, arg.get_id());
            }
        }
    }

    #[test]
    fn no_path_on_this_disk_comes_over_http() {
        for form in forms() {
            for shape in &form.shapes {
                let is_file = matches!(shape.place, Place::Content | Place::File);
                let is_known = PATHS.contains(&shape.name);
                assert_eq!(is_path(&shape.arg), is_file, "{} {}", form.route.path, shape.name);
                assert!(is_file || !is_known, "{} {}", form.route.path, shape.name);
                let help = shape.arg.get_help().map(ToString::to_string).unwrap_or_default();
                let is_mixed = MIXED.contains(&(form.leaf.get_name(), shape.name));
                let speaks_of_files = help.contains("file") || help.contains("folder") || help.contains(".json");
                let is_plain = is_mixed || shape.kind == Kind::Switch || shape.name == "profile";
                assert!(is_file || is_plain || !speaks_of_files, "{} {help}", shape.name);
            }
        }
    }

    #[test]
    fn kinds_are_read_off_the_definitions() {
        let kind = |method: &str, path: &str, name: &str| {
            let form = forms().iter().find(|form| form.route.method.word() == method && form.route.path == path);
            let shape = form.unwrap().shapes.iter().find(|shape| shape.name == name).unwrap();
            (shape.kind, shape.many)
        };
        assert_eq!(kind("GET", "/v1/runs", "limit"), (Kind::Whole { signed: false }, false));
        assert_eq!(kind("POST", "/v1/runs", "set"), (Kind::Text, true));
        assert_eq!(kind("POST", "/v1/runs", "file"), (Kind::File, false));
        assert_eq!(kind("POST", "/v1/evals", "min_score"), (Kind::Number, false));
        assert_eq!(kind("POST", "/v1/evals", "metric"), (Kind::WordOrJson, false));
        assert_eq!(kind("POST", "/v1/authorizations", "max_total"), (Kind::Amount, false));
        assert_eq!(kind("POST", "/v1/authorizations", "alone"), (Kind::Switch, false));
        assert_eq!(kind("POST", "/v1/executions", "params"), (Kind::Json, false));
        assert_eq!(kind("GET", "/v1/ledger/coherence", "ids"), (Kind::Text, true));
        assert_eq!(kind("POST", "/v1/approvals/{id}/approve", "minutes"), (Kind::Whole { signed: true }, false));
    }
}
