//! What a person sees while runs are under way: one line for each, redrawn on a terminal, told once in a pipe.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use actum_engine::Watch;
use actum_kernel::{Phase, State, Verdict};
use actum_ledger::run::Run;

use crate::command::run::seconds;
use crate::log;
use crate::ui::{Out, clean, note};

/// How runs are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Nothing,
    Lines,
    Live,
}

pub(crate) struct Progress {
    style: Style,
    board: Arc<Mutex<Board>>,
}

#[derive(Default)]
struct Board {
    /// Items level by level.
    levels: Vec<Vec<String>>,
    rows: BTreeMap<String, Row>,
    drawn: usize,
    is_in_trouble: bool,
}

struct Row {
    since: Instant,
    text: String,
    estimate_ms: Option<u64>,
    over: Option<(bool, String)>,
}

impl Progress {
    pub(crate) fn new(levels: &[Vec<String>], out: &Out) -> Self {
        let lines: usize = levels.iter().map(|level| level.len() + 1).sum();
        // What does not fit cannot be drawn over.
        let fits = size().is_some_and(|(rows, columns)| lines < rows && columns >= COLUMNS_MIN);
        let style = match (out.quiet() || out.json, std::io::stderr().is_terminal() && fits) {
            (true, _) => Style::Nothing,
            (false, true) => Style::Live,
            (false, false) => Style::Lines,
        };
        let board = Arc::new(Mutex::new(Board { levels: levels.to_vec(), ..Board::default() }));
        if style == Style::Live {
            tick(&board);
        }
        Self { style, board }
    }

    /// For who works on without end.
    pub(crate) fn unless_logged(out: &Out) -> Self {
        let style = if out.quiet() || out.json || log::is_on() { Style::Nothing } else { Style::Lines };
        Self { style, board: Arc::default() }
    }

    /// Shows how many files of an item's stage have been copied. In a pipe, only large copies are shown, in four lines.
    pub(crate) fn copying(&self, item: &str, done: u64, all: u64) {
        let quarter = (done * 4).checked_div(all).unwrap_or(4);
        let text = match self.style {
            Style::Live => format!("stage  {} {done} of {all} files copied", bar(done, all)),
            Style::Lines if all >= COPY_SHOWN_FILES => format!("stage  {}% of {all} files copied", quarter * 25),
            Style::Lines | Style::Nothing => return,
        };
        self.update_item(item, |row| row.text = text);
    }

    fn update(&self, run: &Run, change: impl FnOnce(&mut Row)) {
        self.update_item(&run.item, change);
    }

    fn update_item(&self, item: &str, change: impl FnOnce(&mut Row)) {
        if self.style == Style::Nothing {
            return;
        }
        let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let row = board.rows.entry(item.to_owned()).or_insert_with(|| Row {
            since: now,
            text: String::new(),
            estimate_ms: None,
            over: None,
        });
        let before = (row.text.clone(), row.over.is_some());
        change(row);
        match self.style {
            Style::Lines if (row.text.clone(), row.over.is_some()) != before => note(&line(item, row)),
            Style::Live => board.draw(),
            _ => {}
        }
        // Lines are written once: a worker that runs for months keeps no row of what is over.
        if self.style == Style::Lines && board.rows.get(item).is_some_and(|row| row.over.is_some()) {
            board.rows.remove(item);
        }
    }
}

/// Time passes also while nothing else happens. Ends with the board.
fn tick(board: &Arc<Mutex<Board>>) {
    let board = Arc::downgrade(board);
    let ticking = move || {
        loop {
            std::thread::sleep(TICK);
            let Some(board) = board.upgrade() else { return };
            let mut board = board.lock().unwrap_or_else(PoisonError::into_inner);
            if board.rows.values().any(|row| row.over.is_none()) {
                board.draw();
            }
        }
    };
    // Without it the lines stand still, and nothing else is lost.
    let _ = std::thread::Builder::new().name("actum-progress".into()).spawn(ticking);
}

const TICK: Duration = Duration::from_millis(500);

impl Board {
    /// Over what was drawn before.
    fn draw(&mut self) {
        let mut text = String::new();
        if self.drawn > 0 {
            let _ = write!(text, "\x1b[{}A", self.drawn);
        }
        let mut lines = 0;
        // A line that wraps would be drawn over wrongly.
        let width = size().map_or(COLUMNS_MIN, |(_, columns)| columns.saturating_sub(1));
        for (at, level) in self.levels.iter().enumerate() {
            if self.levels.len() > 1 {
                let _ = writeln!(text, "\x1b[2Klevel {at}");
                lines += 1;
            }
            for item in level {
                let shown = match self.rows.get(item) {
                    Some(row) => line(item, row),
                    None => format!("  · {item}  waits"),
                };
                let shown: String = shown.chars().take(width).collect();
                let _ = writeln!(text, "\x1b[2K{shown}");
                lines += 1;
            }
        }
        self.drawn = lines;
        let mut to = std::io::stderr().lock();
        let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
    }
}

/// A copy of fewer files is over before it is read about.
const COPY_SHOWN_FILES: u64 = 5_000;
const BAR_CHARS: u64 = 20;

/// Returns a progress bar.
fn bar(done: u64, all: u64) -> String {
    let full = (done.min(all) * BAR_CHARS).checked_div(all).unwrap_or(BAR_CHARS);
    (0..BAR_CHARS).map(|at| if at < full { '█' } else { '░' }).collect()
}

/// Narrower than this, lines are told one after the other.
const COLUMNS_MIN: usize = 40;

/// Rows and columns of the terminal.
fn size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok()?;
    Some((usize::from(size.ws_row), usize::from(size.ws_col))).filter(|(rows, columns)| *rows > 0 && *columns > 0)
}

fn line(item: &str, row: &Row) -> String {
    if let Some((good, word)) = &row.over {
        return format!("  {} {item}  {word}", if *good { "✓" } else { "✗" });
    }
    let elapsed = u64::try_from(row.since.elapsed().as_millis()).unwrap_or(0);
    let estimate = row.estimate_ms.map(|ms| format!(" of about {}", seconds(ms))).unwrap_or_default();
    clean(&format!("  ● {item}  {}  {}{estimate}", row.text, seconds(elapsed)))
}

impl Watch for Progress {
    fn see(&self, run: &Run, state: &State) {
        let constraints = &state.agreed.item.constraints;
        let mut text = state.phase.word().to_owned();
        if let Phase::Act(act) = &state.phase {
            let _ = write!(text, " {}/{}", act.index + 1, state.steps.len());
            if state.steps.len() > 1 {
                let _ = write!(text, " {}", act.step.id);
            }
            if let Some(correction) = &act.correction {
                let _ = write!(text, " (correction {})", correction.number);
            }
        }
        let _ = write!(text, "  files {}/{}", state.files, constraints.max_files);
        let _ = write!(text, "  operations {}/{}", state.tool_ops(), constraints.max_tool_ops);
        let estimate_ms = state.agreed.item.budget.time_estimate_ms;
        self.update(run, |row| {
            row.text = text;
            row.estimate_ms = estimate_ms;
            row.over = None;
        });
    }

    fn ended(&self, run: &Run, verdict: &Verdict) {
        let good = verdict.code.is_none();
        let word = verdict.code.clone().unwrap_or_else(|| verdict.status.word().to_owned());
        self.update(run, |row| row.over = Some((good, word)));
    }

    fn trouble(&self, text: &str) {
        // It is tried every moment, and said once.
        let was = std::mem::replace(&mut self.board.lock().unwrap_or_else(PoisonError::into_inner).is_in_trouble, true);
        if self.style != Style::Nothing && !was {
            note(&clean(&format!("takes no runs for now: {text}")));
        }
    }

    fn recovered(&self) {
        let was = std::mem::take(&mut self.board.lock().unwrap_or_else(PoisonError::into_inner).is_in_trouble);
        if self.style != Style::Nothing && was {
            note("takes runs again");
        }
    }

    fn remark(&self, run: &Run, text: &str) {
        if self.style != Style::Nothing {
            note(&clean(&format!("{}: {text}", run.item)));
        }
    }
}
