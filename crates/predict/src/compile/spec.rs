//! What a job says of its candidates: written down one by one, or as a product of things to vary. Read by `job`, made into
//! artifacts by `candidate`.

use actum_contract::part::Part;
use serde_json::{Map, Value, json};

use super::{BASELINE, CANDIDATES_MAX};
use crate::artifact::{self, SHOTS_MAX, Shot};
use crate::dataset::{SEED_BYTES_MAX, SEED_DEFAULT};
use crate::signature::{self, Program, Strategy, Template};

/// Bytes of the name of a candidate or a prompt, and of a model.
pub(super) const NAME_BYTES_MAX: usize = 80;
pub(super) const MODEL_BYTES_MAX: usize = 200;

const NOUN: &str = "a candidate";
const SHOTS_EXPECTED: &str = "a number, {count, seed, balanced}";

/// One candidate. What it does not say is as the signature says.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    pub name: String,
    /// A registered one, in place of all the rest.
    pub artifact: Option<String>,
    pub prompt: Option<Template>,
    pub program: Option<Program>,
    /// These two change the program, the signature's or the one given.
    pub strategy: Option<Strategy>,
    pub model: Option<String>,
    pub shots: Shots,
}

/// Examples that stand in the prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Shots {
    /// From train.
    Drawn(Draw),
    Given(Vec<Shot>),
}

/// How many of train, and which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draw {
    pub count: usize,
    pub seed: String,
    /// By turns of each answer that there is.
    pub is_balanced: bool,
}

/// Things to vary: every combination is a candidate.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Search {
    pub prompts: Vec<(String, Template)>,
    pub strategies: Vec<Strategy>,
    pub models: Vec<String>,
    pub few_shot: Vec<Draw>,
}

impl Draw {
    pub(super) fn of(count: usize) -> Self {
        Self { count, seed: SEED_DEFAULT.to_owned(), is_balanced: false }
    }

    fn read(part: &mut Part<'_>, field: &str, value: &Value) -> Option<Self> {
        let expected = format!("a whole number from 0 to {SHOTS_MAX}");
        let count =
            |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|count| *count <= SHOTS_MAX);
        match value {
            Value::Number(_) => {
                let found = count(value);
                if found.is_none() {
                    part.bad(field, value, &expected);
                }
                found.map(Self::of)
            }
            Value::Object(_) => {
                let at = part.name(field);
                let part = &mut Part::new(value, &at, "a choice of examples", part.flaws);
                let given = part.take("count").unwrap_or(Value::Null);
                let found = count(&given);
                if found.is_none() {
                    part.bad("count", &given, &expected);
                }
                let seed = part.text("seed").unwrap_or_else(|| SEED_DEFAULT.to_owned());
                if !is_line(&seed, SEED_BYTES_MAX) {
                    part.bad("seed", &json!(seed), &format!("a text of 1 to {SEED_BYTES_MAX} bytes"));
                }
                let is_balanced = part.switch("balanced").unwrap_or(false);
                part.finish();
                found.map(|count| Self { count, seed, is_balanced })
            }
            _ => {
                part.bad(field, value, SHOTS_EXPECTED);
                None
            }
        }
    }

    fn to_json(&self) -> Value {
        if *self == Self::of(self.count) {
            return json!(self.count);
        }
        json!({"count": self.count, "seed": self.seed, "balanced": self.is_balanced})
    }

    /// Its part of a name.
    fn name(&self) -> String {
        let balanced = if self.is_balanced { "-balanced" } else { "" };
        let seed = if self.seed == SEED_DEFAULT { String::new() } else { format!("-{}", self.seed) };
        format!("{}-shot{balanced}{seed}", self.count)
    }
}

impl Spec {
    /// As the signature, under another name.
    pub(super) fn plain(name: String) -> Self {
        let shots = Shots::Drawn(Draw::of(0));
        Self { name, artifact: None, prompt: None, program: None, strategy: None, model: None, shots }
    }

    pub(super) fn read(part: &mut Part<'_>, at: &str, item: &Value) -> Option<Self> {
        if item.is_null() {
            part.bad(at, item, "a candidate {name, …}");
            return None;
        }
        let at = part.name(at);
        let part = &mut Part::new(item, &at, NOUN, part.flaws);
        let name = read_name(part, "name");
        if name.as_deref() == Some(BASELINE) {
            part.bad("name", &json!(BASELINE), "another name: this one is the signature as it is");
        }
        let artifact = part.text("artifact").filter(|id| {
            let is_good = artifact::is_id(id);
            if !is_good {
                part.bad("artifact", &json!(id), "the id of a registered artifact, art_…");
            }
            is_good
        });
        let has_rest = ["prompt_template", "program_template", "strategy", "model", "few_shot"]
            .iter()
            .any(|field| part.has(field));
        if let Some(id) = artifact.as_ref().filter(|_| has_rest) {
            part.bad("artifact", &json!(id), "an artifact alone: it says prompt, program and examples itself");
        }
        let prompt = part.has("prompt_template").then(|| signature::read_template(part));
        let program = part.has("program_template").then(|| Program::take(part));
        let strategy = part.take("strategy").map(|value| read_strategy(part, "strategy", &value));
        let model = part.take("model").map(|value| read_model(part, "model", &value));
        let shots = read_shots(part);
        // So that these are known fields even where they do not stand.
        ["prompt_template", "program_template"].iter().for_each(|field| drop(part.take(field)));
        part.finish();
        Some(Self {
            name: name?,
            artifact,
            prompt: lift(prompt)?,
            program: lift(program)?,
            strategy: lift(strategy)?,
            model: lift(model)?,
            shots: shots?,
        })
    }

    pub(super) fn to_json(&self) -> Value {
        let mut fields = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            fields.extend(value.map(|value| (name.to_owned(), value)));
        };
        put("name", Some(json!(self.name)));
        put("artifact", self.artifact.as_ref().map(|id| json!(id)));
        put("prompt_template", self.prompt.as_ref().map(Template::to_json));
        put("program_template", self.program.as_ref().map(Program::to_json));
        put("strategy", self.strategy.map(|strategy| json!(strategy.word())));
        put("model", self.model.as_ref().map(|model| json!(model)));
        let shots = match &self.shots {
            Shots::Drawn(draw) => (draw.count > 0).then(|| draw.to_json()),
            Shots::Given(shots) => Some(shots.iter().map(Shot::to_json).collect()),
        };
        put("few_shot", shots);
        Value::Object(fields)
    }
}

impl Search {
    pub(super) fn read(part: &mut Part<'_>, value: &Value) -> Option<Self> {
        let at = part.name("search");
        let part = &mut Part::new(value, &at, "a search", part.flaws);
        let before = part.flaws.len();
        let prompts = each(part, "prompts", |part, at, item| {
            let at = part.name(at);
            let part = &mut Part::new(item, &at, "a prompt", part.flaws);
            let (name, template) = (read_name(part, "name"), signature::read_template(part));
            part.finish();
            name.zip(template)
        });
        let strategies = each(part, "strategies", read_strategy);
        let models = each(part, "models", read_model);
        let few_shot = each(part, "few_shot", Draw::read);
        part.finish();
        let search = Self { prompts: prompts?, strategies: strategies?, models: models?, few_shot: few_shot? };
        let names: Vec<&String> = search.prompts.iter().map(|(name, _)| name).collect();
        if names.iter().enumerate().any(|(at, name)| names[..at].contains(name)) {
            part.bad("prompts", &json!(names), "prompts of different names");
        }
        let sides = search.sides();
        if part.flaws.len() > before {
            return None;
        }
        if sides.iter().all(|side| *side == 0) {
            part.bad("prompts", &Value::Null, "something to vary: prompts, strategies, models or few_shot");
            return None;
        }
        let count = sides.iter().fold(1_usize, |count, side| count.saturating_mul((*side).max(1)));
        if count > CANDIDATES_MAX {
            let expected = format!("at most {CANDIDATES_MAX} combinations; vary less at once");
            part.bad("prompts", &json!(format!("{count} combinations")), &expected);
            return None;
        }
        Some(search)
    }

    fn sides(&self) -> [usize; 4] {
        [self.prompts.len(), self.strategies.len(), self.models.len(), self.few_shot.len()]
    }

    pub(super) fn to_json(&self) -> Value {
        let prompt =
            |(name, template): &(String, Template)| json!({"name": name, "prompt_template": template.to_json()});
        let sides: [(&str, Vec<Value>); 4] = [
            ("prompts", self.prompts.iter().map(prompt).collect()),
            ("strategies", self.strategies.iter().map(|strategy| json!(strategy.word())).collect()),
            ("models", self.models.iter().map(|model| json!(model)).collect()),
            ("few_shot", self.few_shot.iter().map(Draw::to_json).collect()),
        ];
        let given = sides.into_iter().filter(|(_, side)| !side.is_empty());
        Value::Object(given.map(|(name, side)| (name.to_owned(), json!(side))).collect())
    }

    /// Every combination, under the names of what was varied; those that no strategy can do are left out.
    pub(super) fn specs(&self, own: Strategy) -> Vec<Spec> {
        let mut specs = vec![Spec::plain(String::new())];
        specs = product(specs, &self.prompts, |spec, (name, template)| {
            spec.prompt = Some(template.clone());
            name.clone()
        });
        specs = product(specs, &self.strategies, |spec, strategy| {
            spec.strategy = Some(*strategy);
            strategy.word().to_owned()
        });
        specs = product(specs, &self.models, |spec, model| {
            spec.model = Some(model.clone());
            model.clone()
        });
        specs = product(specs, &self.few_shot, |spec, draw| {
            spec.shots = Shots::Drawn(draw.clone());
            draw.name()
        });
        let can = |spec: &Spec| match &spec.shots {
            Shots::Drawn(draw) => draw.count == 0 || spec.strategy.unwrap_or(own) == Strategy::Direct,
            Shots::Given(_) => true,
        };
        specs.retain(can);
        specs
    }
}

/// Each of these with each of those; nothing to vary leaves them as they are.
fn product<T>(specs: Vec<Spec>, side: &[T], change: impl Fn(&mut Spec, &T) -> String) -> Vec<Spec> {
    if side.is_empty() {
        return specs;
    }
    let vary = |spec: &Spec, one: &T| {
        let mut spec = spec.clone();
        let word = change(&mut spec, one);
        spec.name = if spec.name.is_empty() { word } else { format!("{}+{word}", spec.name) };
        spec
    };
    specs.iter().flat_map(|spec| side.iter().map(|one| vary(spec, one)).collect::<Vec<_>>()).collect()
}

/// A list of which every item is read; none if one could not be, or one stands there twice.
fn each<T: PartialEq>(
    part: &mut Part<'_>,
    field: &str,
    mut read: impl FnMut(&mut Part<'_>, &str, &Value) -> Option<T>,
) -> Option<Vec<T>> {
    let Some(value) = part.take(field) else { return Some(Vec::new()) };
    let Some(items) = value.as_array().filter(|items| (1..=CANDIDATES_MAX).contains(&items.len())) else {
        part.bad(field, &value, &format!("a list of 1 to {CANDIDATES_MAX}"));
        return None;
    };
    let read = items.iter().enumerate().map(|(at, item)| read(part, &format!("{field}[{at}]"), item));
    let found: Vec<T> = read.collect::<Vec<_>>().into_iter().collect::<Option<_>>()?;
    if found.iter().enumerate().any(|(at, one)| found[..at].contains(one)) {
        part.bad(field, &value, "each of them once");
        return None;
    }
    Some(found)
}

/// What is missing is well; what was there and could not be read is not.
fn lift<T>(read: Option<Option<T>>) -> Option<Option<T>> {
    match read {
        None => Some(None),
        Some(None) => None,
        Some(found) => Some(found),
    }
}

fn read_name(part: &mut Part<'_>, field: &str) -> Option<String> {
    let value = part.take(field).unwrap_or(Value::Null);
    let name = value.as_str().filter(|name| is_line(name, NAME_BYTES_MAX)).map(ToOwned::to_owned);
    if name.is_none() {
        part.bad(field, &value, &format!("a name of 1 to {NAME_BYTES_MAX} bytes"));
    }
    name
}

fn read_strategy(part: &mut Part<'_>, field: &str, value: &Value) -> Option<Strategy> {
    let found = value.as_str().and_then(Strategy::read);
    if found.is_none() {
        let words = Strategy::ALL.map(Strategy::word).join(" or ");
        part.bad(field, value, &format!("{words} (unsupported_strategy)"));
    }
    found
}

fn read_model(part: &mut Part<'_>, field: &str, value: &Value) -> Option<String> {
    let model = value.as_str().filter(|name| is_line(name, MODEL_BYTES_MAX)).map(ToOwned::to_owned);
    if model.is_none() {
        part.bad(field, value, &format!("the name of a model, of at most {MODEL_BYTES_MAX} bytes"));
    }
    model
}

fn read_shots(part: &mut Part<'_>) -> Option<Shots> {
    let field = "few_shot";
    match part.take(field) {
        None => Some(Shots::Drawn(Draw::of(0))),
        Some(list @ Value::Array(_)) => {
            let name = part.name("");
            let whole = json!({ field: list });
            artifact::read_shots(&mut Part::new(&whole, name.trim_end_matches('.'), NOUN, part.flaws))
                .map(|shots| if shots.is_empty() { Shots::Drawn(Draw::of(0)) } else { Shots::Given(shots) })
        }
        Some(value @ (Value::Number(_) | Value::Object(_))) => Draw::read(part, field, &value).map(Shots::Drawn),
        Some(other) => {
            part.bad(field, &other, &format!("{SHOTS_EXPECTED}, or a list of {{input, output}}"));
            None
        }
    }
}

fn is_line(text: &str, bytes_max: usize) -> bool {
    !text.trim().is_empty() && text.len() <= bytes_max && !text.chars().any(char::is_control)
}
