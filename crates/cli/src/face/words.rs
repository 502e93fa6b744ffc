//! From a request to the words of a command line. What somebody gives is never taken for a flag, what nobody asked for is
//! refused with the names there are, and contents become files in a folder of their own. Called by `face::run`; runs nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use actum_api::error;
use actum_api::route::Place;
use actum_contract::canon;
use serde_json::{Map, Value, json};

use super::Given;
use super::shape::{ACTOR, Form, Kind, Shape};
use crate::failure::Failure;
use crate::repository::SCRATCH;
use crate::workspace::new_id;

/// Flaws of one request that are told.
const FLAWS_MAX: usize = 20;
/// Up to here every whole number is one of its own, also where numbers are floating.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
/// Letters of a name that is told back.
const NAME_CHARS_MAX: usize = 60;

/// A private folder for what came with a request, made when it is needed and gone with it.
#[derive(Debug, Default)]
pub(super) struct Drawer(Option<PathBuf>);

/// How the folders of requests are called, in the folder for temporary files.
const DRAWER: &str = "actum-request-";
/// No request takes so long, nor does git: what is older was left by a process that was killed.
const DRAWER_AGE_MAX: Duration = Duration::from_secs(2 * 3_600);

/// Takes away what requests have left that were cut off. Folders of others are theirs.
pub(crate) fn sweep() {
    use std::os::unix::fs::MetadataExt as _;
    let own = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let is_drawer = |name: &str| [DRAWER, SCRATCH].iter().any(|own| name.starts_with(own));
        let is_drawer = entry.file_name().to_str().is_some_and(is_drawer);
        let Some(found) = entry.metadata().ok().filter(|found| is_drawer && found.is_dir() && found.uid() == own)
        else {
            continue;
        };
        if found.modified().ok().and_then(|at| at.elapsed().ok()).is_some_and(|age| age > DRAWER_AGE_MAX) {
            // Whoever else sweeps at the same time has done it.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

impl Drawer {
    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<PathBuf, Failure> {
        let cannot = |e: std::io::Error| Failure::of_io(format!("the content cannot be kept: {e}"), &e);
        let folder = match &self.0 {
            Some(folder) => folder.clone(),
            None => {
                let folder = std::env::temp_dir().join(format!("{DRAWER}{}", new_id()));
                DirBuilder::new().mode(0o700).create(&folder).map_err(cannot)?;
                self.0 = Some(folder.clone());
                folder
            }
        };
        let path = folder.join(name);
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        made.and_then(|mut file| file.write_all(bytes)).map_err(cannot)?;
        Ok(path)
    }

    /// A text in which the folder is not named: nobody knows it, and it is gone.
    pub(super) fn hide(&self, text: Vec<u8>) -> Vec<u8> {
        let Some(folder) = self.0.as_deref().and_then(Path::to_str) else { return text };
        match std::str::from_utf8(&text) {
            Ok(said) if said.contains(folder) => said.replace(&format!("{folder}/"), "").into_bytes(),
            _ => text,
        }
    }
}

impl Drop for Drawer {
    fn drop(&mut self) {
        if let Some(folder) = &self.0 {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// What is wrong with a request: all of it, each with the name it is about.
#[derive(Debug, Default)]
struct Flaws(Vec<(String, String)>);

impl Flaws {
    fn note(&mut self, name: &str, message: impl Into<String>) {
        self.0.push((name.chars().take(NAME_CHARS_MAX).collect(), message.into()));
    }

    fn check(self, form: &Form) -> Result<(), Failure> {
        let Some((name, message)) = self.0.first() else { return Ok(()) };
        let said = format!("{name}: {message}");
        let fields: Vec<Value> =
            self.0.iter().take(FLAWS_MAX).map(|(name, message)| json!({"field": name, "message": message})).collect();
        let names = |places: &[Place]| {
            let shapes = form.shapes.iter().filter(|shape| places.contains(&shape.place));
            shapes.map(|shape| shape.name).collect::<Vec<_>>().join(", ")
        };
        let (query, content) = (names(&[Place::Query]), names(&[Place::Field, Place::File]));
        let or_none = |names: String| if names.is_empty() { "none".to_owned() } else { names };
        Err(Failure::new(error::USAGE, said).details(json!({"fields": fields})).hint(format!(
            "in the query there are: {}; in the content: {}",
            or_none(query),
            or_none(content)
        )))
    }
}

/// Values by the names of their arguments; of a switch, nothing if it is off.
type Values = BTreeMap<&'static str, Vec<OsString>>;

/// The words for what was asked. `actor`: who asks.
pub(super) fn of(form: &Form, given: &Given, actor: &str, drawer: &mut Drawer) -> Result<Vec<OsString>, Failure> {
    let (mut values, mut flaws) = (Values::new(), Flaws::default());
    for shape in form.shapes_in(Place::Path) {
        match given.path.get(shape.name).filter(|text| !text.is_empty()) {
            Some(text) => drop(values.insert(shape.name, vec![text.into()])),
            None => flaws.note(shape.name, "is missing in the path"),
        }
    }
    read_query(form, given, &mut values, &mut flaws);
    if let Some(shape) = form.shapes_in(Place::Content).next() {
        if given.content.is_empty() {
            let failure = Failure::new(error::USAGE, "the request has no content");
            return Err(failure.hint("send the document itself, as JSON or YAML"));
        }
        let name = if given.is_json { "request.json" } else { "request.yaml" };
        values.insert(shape.name, vec![drawer.put(name, &given.content)?.into()]);
    } else {
        read_fields(form, &object(given)?, drawer, &mut values, &mut flaws)?;
    }
    flaws.check(form)?;
    Ok(arranged(form, values, actor))
}

/// Flags first, each with its value in one word; then what has no name, behind the sign that no flag follows.
fn arranged(form: &Form, mut values: Values, actor: &str) -> Vec<OsString> {
    let own = std::iter::once("actum").chain(form.route.command.iter().copied());
    let mut words: Vec<OsString> = own.chain(form.route.fixed.iter().copied()).map(OsString::from).collect();
    let flag = |long: &str, value: &OsString| {
        let mut word = OsString::from(format!("--{long}="));
        word.push(value);
        word
    };
    if form.has_actor() {
        words.push(flag(ACTOR, &actor.into()));
    }
    for shape in &form.shapes {
        let Some(long) = shape.arg.get_long().filter(|_| values.contains_key(shape.name)) else { continue };
        let given = values.remove(shape.name).unwrap_or_default();
        match shape.kind {
            Kind::Switch => words.extend(given.iter().map(|_| OsString::from(format!("--{long}")))),
            _ => words.extend(given.iter().map(|value| flag(long, value))),
        }
    }
    words.push("--".into());
    words.extend(form.positionals().filter_map(|name| values.remove(name)).flatten());
    words
}

fn read_query(form: &Form, given: &Given, values: &mut Values, flaws: &mut Flaws) {
    let mut seen = BTreeSet::new();
    for (name, text) in &given.query {
        let Some(shape) = form.shapes_in(Place::Query).find(|shape| shape.name == name) else {
            flaws.note(name, "is not known in the query");
            continue;
        };
        if !seen.insert(shape.name) && !shape.many {
            flaws.note(name, "is given more than once");
            continue;
        }
        match (shape.kind, text.as_str()) {
            (Kind::Switch, "true") => drop(values.insert(shape.name, vec![OsString::new()])),
            (Kind::Switch, "false") => {}
            (Kind::Switch, _) => flaws.note(name, "must be true or false"),
            (_, text) => values.entry(shape.name).or_default().push(text.into()),
        }
    }
}

/// The content of a request that has fields; none is one without any.
fn object(given: &Given) -> Result<Map<String, Value>, Failure> {
    if given.content.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    let bad = |message: String| {
        Failure::new(error::INPUT, message).hint("send one JSON object, with Content-Type: application/json")
    };
    if !given.is_json {
        return Err(bad("the content is not sent as JSON".into()));
    }
    match canon::parse(&given.content) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(bad("the content is no object".into())),
        Err(e) => {
            let details = json!({"line": e.line, "column": e.column});
            Err(bad(format!("the content is no JSON: {}", e.message)).details(details))
        }
    }
}

fn read_fields(
    form: &Form,
    fields: &Map<String, Value>,
    drawer: &mut Drawer,
    values: &mut Values,
    flaws: &mut Flaws,
) -> Result<(), Failure> {
    for (name, value) in fields {
        let in_content = |shape: &&Shape| matches!(shape.place, Place::Field | Place::File);
        let Some(shape) = form.shapes.iter().filter(in_content).find(|shape| shape.name == name) else {
            flaws.note(name, "is not known in the content");
            continue;
        };
        let read = match (shape.kind, value) {
            (Kind::File, Value::String(text)) => vec![drawer.put(&format!("{name}.yaml"), text.as_bytes())?.into()],
            (Kind::File, value) => vec![drawer.put(&format!("{name}.json"), value.to_string().as_bytes())?.into()],
            (Kind::Switch, Value::Bool(true)) => vec![OsString::new()],
            (Kind::Switch, Value::Bool(false)) => continue,
            (Kind::Switch, _) => {
                flaws.note(name, "must be true or false");
                continue;
            }
            (_, Value::Array(many)) if shape.many => many.iter().filter_map(|one| text_of(shape, one, flaws)).collect(),
            _ if shape.many => {
                flaws.note(name, "must be a list");
                continue;
            }
            (_, value) => text_of(shape, value, flaws).into_iter().collect(),
        };
        values.insert(shape.name, read);
    }
    Ok(())
}

fn is_whole(number: &serde_json::Number) -> bool {
    number.as_f64().is_some_and(|number| number.fract() == 0.0 && number.abs() < WHOLE_MAX)
}

/// A value as the command line takes it.
fn text_of(shape: &Shape, value: &Value, flaws: &mut Flaws) -> Option<OsString> {
    let wanted = match (shape.kind, value) {
        (Kind::Json, value) => return Some(value.to_string().into()),
        (Kind::Text | Kind::Amount | Kind::WordOrJson, Value::String(text)) => return Some(text.into()),
        (Kind::WordOrJson, Value::Object(_)) => return Some(value.to_string().into()),
        (Kind::Number, Value::Number(number)) => return Some(number.to_string().into()),
        (Kind::Whole { .. } | Kind::Amount, Value::Number(number)) if !number.is_f64() => {
            return Some(number.to_string().into());
        }
        // Written with a point, and whole all the same.
        (Kind::Whole { .. } | Kind::Amount, Value::Number(number)) if is_whole(number) => {
            return Some(format!("{:.0}", number.as_f64().unwrap_or_default()).into());
        }
        (Kind::Whole { .. }, _) => "must be a whole number",
        (Kind::Number, _) => "must be a number",
        (Kind::Amount, _) => "must be a whole number, or an amount such as \"2.50usd\"",
        (Kind::WordOrJson, _) => "must be text or an object",
        _ => "must be text",
    };
    flaws.note(shape.name, wanted);
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_what_nobody_can_be_at_any_more_is_swept() {
        let folder = |kind: &str, age: Duration| {
            let folder = std::env::temp_dir().join(format!("{kind}{}", new_id()));
            std::fs::create_dir_all(folder.join("below")).unwrap();
            let opened = std::fs::File::open(&folder).unwrap();
            opened.set_modified(std::time::SystemTime::now() - age).unwrap();
            folder
        };
        let old = DRAWER_AGE_MAX + Duration::from_secs(60);
        let [request, git, others] = [DRAWER, SCRATCH, "actum-others-"].map(|kind| folder(kind, old));
        let young = folder(SCRATCH, DRAWER_AGE_MAX / 2);
        sweep();
        assert!(!request.exists() && !git.exists());
        for kept in [others, young] {
            std::fs::remove_dir_all(kept).unwrap();
        }
    }

    #[test]
    fn a_drawer_is_private_and_gone_with_its_request() {
        let mut drawer = Drawer::default();
        assert_eq!(drawer.hide(b"as it was".to_vec()), b"as it was");
        let path = drawer.put("request.json", b"{}").unwrap();
        let folder = path.parent().unwrap().to_owned();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&path)), (0o700, 0o600));
        assert!(drawer.put("request.json", b"{}").is_err());
        let said = format!("{}: line 1", path.display()).into_bytes();
        assert_eq!(drawer.hide(said), b"request.json: line 1");
        drop(drawer);
        assert!(!folder.exists());
    }
}
