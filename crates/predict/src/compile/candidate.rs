//! From what a job says to artifacts that can be asked: the signature itself first, then those written down, then those of
//! the search. Called once for each job; the same job, signature and dataset give the same candidates everywhere.

use std::collections::BTreeMap;

use actum_contract::digest::Digest;

use super::spec::{Draw, Shots, Spec};
use super::{BASELINE, CANDIDATES_MAX, Candidate, Job};
use crate::artifact::{Artifact, Shot};
use crate::dataset::{Dataset, Example, Slice};
use crate::hash;
use crate::signature::Signature;

/// Why a job cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadJob {
    #[error("the job is for {job}, and {what} is for {found}; give those that belong together")]
    OtherSignature { job: String, what: &'static str, found: String },
    #[error(
        "there is nothing to select by: of {total} examples {train} are in train, {test} in test, and none in holdout; \
         give more examples, a larger holdout in the split, or another split seed"
    )]
    NoHoldout { total: usize, train: usize, test: usize },
    #[error("candidate {name} wants {wanted} examples of train, and there are {found}; ask for fewer, or give more")]
    TooFewShots { name: String, wanted: usize, found: usize },
    #[error("candidate {name} names the artifact {artifact}, which is not registered; add it first")]
    UnknownArtifact { name: String, artifact: String },
    #[error("candidate {name} cannot be asked: {why}")]
    Unfit { name: String, why: String },
    #[error("two candidates are called {name}; rename the one that is written down")]
    NameTwice { name: String },
    #[error("there are {count} candidates, more than {CANDIDATES_MAX}; vary less at once")]
    TooMany { count: usize },
}

impl Job {
    /// All candidates in their order, equal ones once. `known`: the artifacts that the job names.
    pub fn candidates(
        &self,
        signature: &Signature,
        dataset: &Dataset,
        known: &BTreeMap<String, Artifact>,
    ) -> Result<Vec<Candidate>, BadJob> {
        for (what, found) in [("the signature", signature.id()), ("the dataset", dataset.signature_id.clone())] {
            if found != self.signature_id {
                return Err(BadJob::OtherSignature { job: self.signature_id.clone(), what, found });
            }
        }
        let [train, holdout, test] = Slice::ALL.map(|slice| dataset.of(slice).count());
        if holdout == 0 {
            return Err(BadJob::NoHoldout { total: train + test, train, test });
        }
        let searched = self.search.iter().flat_map(|search| search.specs(signature.program.strategy));
        let mut candidates = vec![Candidate { name: BASELINE.to_owned(), artifact: Artifact::of(signature) }];
        let mut ids = vec![candidates[0].artifact.id()];
        for spec in self.candidates.iter().cloned().chain(searched) {
            let artifact = make(&spec, signature, dataset, known)?;
            let id = artifact.id();
            if ids.contains(&id) {
                continue;
            }
            if candidates.iter().any(|other| other.name == spec.name) {
                return Err(BadJob::NameTwice { name: spec.name });
            }
            ids.push(id);
            candidates.push(Candidate { name: spec.name, artifact });
        }
        let count = candidates.len();
        if count > CANDIDATES_MAX { Err(BadJob::TooMany { count }) } else { Ok(candidates) }
    }
}

fn make(
    spec: &Spec,
    signature: &Signature,
    dataset: &Dataset,
    known: &BTreeMap<String, Artifact>,
) -> Result<Artifact, BadJob> {
    let name = || spec.name.clone();
    let unfit = |why: String| BadJob::Unfit { name: name(), why };
    let artifact = if let Some(id) = &spec.artifact {
        let found = known.get(id).cloned();
        found.ok_or_else(|| BadJob::UnknownArtifact { name: name(), artifact: id.clone() })?
    } else {
        let mut artifact = Artifact::of(signature);
        if let Some(prompt) = &spec.prompt {
            artifact.prompt = prompt.clone();
        }
        if let Some(program) = &spec.program {
            artifact.program = program.clone();
        }
        artifact.program.strategy = spec.strategy.unwrap_or(artifact.program.strategy);
        artifact.program.model = spec.model.clone().or(artifact.program.model);
        artifact.shots = match &spec.shots {
            Shots::Given(shots) => shots.clone(),
            Shots::Drawn(draw) => {
                drawn(draw, dataset).map_err(|found| BadJob::TooFewShots { name: name(), wanted: draw.count, found })?
            }
        };
        artifact
    };
    // What could not be registered is not worth asking.
    Artifact::read(&artifact.to_json())
        .map_err(|flaws| unfit(flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))?;
    artifact.bind(signature).map_err(|why| unfit(why.to_string()))?;
    Ok(artifact)
}

/// Examples of train, by the order in which the seed puts them; or how many there are, if those are too few.
fn drawn(draw: &Draw, dataset: &Dataset) -> Result<Vec<Shot>, usize> {
    if draw.count == 0 {
        return Ok(Vec::new());
    }
    let rank = |example: &Example| Digest::sha256(format!("{}|{}", draw.seed, example.id).as_bytes()).to_hex();
    let mut train: Vec<(String, &Example)> = dataset.of(Slice::Train).map(|one| (rank(one), one)).collect();
    if train.len() < draw.count {
        return Err(train.len());
    }
    train.sort_by(|(a, _), (b, _)| a.cmp(b));
    if draw.is_balanced {
        // The nth of every answer before the next of any; answers in the order of their hashes.
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let turn = |one: &Example| {
            let answer = hash::of(&one.expected);
            let turn = seen.entry(answer.clone()).or_insert(0);
            *turn += 1;
            (*turn, answer)
        };
        let turns: Vec<(usize, String)> = train.iter().map(|(_, one)| *one).map(turn).collect();
        let mut order: Vec<_> = turns.into_iter().zip(train).collect();
        order.sort_by(|(a, _), (b, _)| a.cmp(b));
        train = order.into_iter().map(|(_, one)| one).collect();
    }
    let shot = |(_, one): &(String, &Example)| Shot { input: one.input.clone(), output: one.expected.clone() };
    Ok(train[..draw.count].iter().map(shot).collect())
}
