//! Running the real binary in a private folder, with an environment that holds nothing of the machine's.

use std::io::{BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::folder::Folder;
use crate::served::Served;

/// The binary, a folder of its own to work in, and flags for every call.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
    pub folder: Folder,
    flags: Vec<String>,
    env: Vec<(String, String)>,
    /// The words that change the user, and the folder in which that user finds the binary.
    user: Option<Folder>,
    /// Where it is asked by way of a server, if it is.
    served: Served,
    /// What stands before its name on every call.
    before: Vec<String>,
}

const NOBODY: [&str; 6] = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"];

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

/// Any other program, for what a test or a benchmark needs from the machine.
pub fn other(name: &str) -> Command {
    Command::new(name)
}

/// What a call left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Program {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            folder: Folder::new(),
            flags: Vec::new(),
            env: Vec::new(),
            user: None,
            served: Served::default(),
            before: Vec::new(),
        }
    }

    /// The same program, started by another one that becomes it.
    pub fn started_by(mut self, words: &[String]) -> Self {
        self.before = words.to_vec();
        self
    }

    /// The same program on another store.
    pub fn on_store(mut self, url: &str) -> Self {
        self.flags = vec!["--store".into(), url.into()];
        self
    }

    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// The same program, from now on as an ordinary user who owns the folder and nothing else.
    pub fn owned_by_nobody(mut self) -> Self {
        if is_root() {
            let own = Folder::new();
            let (copy, folder) = (own.join("actum"), self.folder.path());
            for (word, from, to) in [("cp", &*self.path, &*copy), ("chown", Path::new("nobody:nogroup"), folder)] {
                let done = Command::new(word).arg("-R").arg(from).arg(to).status().expect("there is cp and chown");
                assert!(done.success(), "{word} {}", to.display());
            }
            (self.path, self.user) = (copy, Some(own));
        }
        self
    }

    /// The same program in the same folder, as a user who owns nothing.
    pub fn as_nobody(&self) -> Visitor<'_> {
        Visitor(self)
    }

    /// Copied by another process: a file that was open for writing in this one while a child was started in another
    /// thread cannot be run.
    pub fn copy_for_nobody(&self) -> PathBuf {
        let copy = self.path("actum-for-nobody");
        let done = Command::new("cp").arg(&self.path).arg(&copy).status().expect("there is cp");
        assert!(done.success(), "the program can be copied");
        copy
    }

    fn command(&self, arguments: &[&str]) -> Command {
        if let [first, more @ ..] = &self.before[..] {
            let mut command = Command::new(first);
            command.args(more).arg(&self.path);
            return self.command_of(command, arguments);
        }
        if self.user.is_none() {
            return self.command_of(Command::new(&self.path), arguments);
        }
        let mut command = Command::new(NOBODY[0]);
        command.args(&NOBODY[1..]).arg(&self.path);
        self.command_of(command, arguments)
    }

    fn command_of(&self, mut command: Command, arguments: &[&str]) -> Command {
        command.args(arguments).args(&self.flags).current_dir(self.folder.path()).env_clear();
        command.envs(self.env.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ended {
        self.run_with(arguments, b"")
    }

    /// Runs to the end with `input` on stdin.
    pub fn run_with(&self, arguments: &[&str], input: &[u8]) -> Ended {
        if let Some(ended) = self.served.run_with(self, arguments, input) {
            return ended;
        }
        run(self.command(arguments), input)
    }

    /// Runs to the end with stdin, stdout and stderr on a terminal of its own; what it printed is in `stdout`.
    pub fn on_terminal(&self, arguments: &[&str], input: &[u8]) -> Ended {
        let command = self.command(arguments);
        let quoted = |word: &std::ffi::OsStr| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"));
        let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).map(quoted).collect();
        self.shell_on_terminal(&words.join(" "), input)
    }

    /// Runs a shell script to its end, like `on_terminal`.
    pub fn shell_on_terminal(&self, script: &str, input: &[u8]) -> Ended {
        let mut terminal = Command::new("script");
        terminal.args(["-qec", script, "/dev/null"]).current_dir(self.folder.path()).env_clear();
        terminal.envs(self.command(&[]).get_envs().filter_map(|(name, value)| Some((name, value?))));
        run(terminal, input)
    }

    /// The same call without the flags for every call, asked of a server.
    pub(crate) fn away(&self, arguments: &[&str], env: &[(&str, &str)], input: &[u8]) -> Ended {
        let mut command = Command::new(&self.path);
        command.args(arguments).current_dir(self.folder.path()).env_clear();
        command.envs(self.env.iter().map(|(k, v)| (k.as_str(), v.as_str()))).envs(env.iter().copied());
        run(command, input)
    }

    /// The same call, in any case by this process's own child.
    pub(crate) fn here(&self, arguments: &[&str]) -> Ended {
        run(self.command(arguments), b"")
    }

    /// Starts a call that is talked to while it runs.
    pub fn start(&self, arguments: &[&str], env: &[(&str, &str)]) -> Running {
        let mut command = self.command(arguments);
        command.envs(env.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        Running {
            stdin: child.stdin.take(),
            stdout: BufReader::new(child.stdout.take().expect("a pipe")),
            stderr: BufReader::new(child.stderr.take().expect("a pipe")),
            child,
        }
    }

    /// Starts a call that nobody talks to; what it says goes to the end of a file.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn launch(&self, arguments: &[&str], log: &Path) -> Launched {
        let file = std::fs::File::options().create(true).append(true).open(log).expect("the log can be written");
        let mut command = self.command(arguments);
        command.stdin(Stdio::null()).stdout(file.try_clone().expect("a second handle")).stderr(file);
        Launched(command.spawn().expect("the program starts"))
    }

    pub fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        self.folder.file(name, text)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Somebody else at the same place.
#[derive(Debug)]
pub struct Visitor<'a>(&'a Program);

impl Visitor<'_> {
    pub fn run(&self, arguments: &[&str]) -> Ended {
        self.run_with(arguments, b"")
    }

    /// As root by dropping to the user `nobody`; an ordinary user owns little enough already.
    pub fn run_with(&self, arguments: &[&str], input: &[u8]) -> Ended {
        let program = self.0;
        if !is_root() {
            return program.run_with(arguments, input);
        }
        // The binary may lie where nobody may not go.
        let copy = program.copy_for_nobody();
        let mut command = Command::new(NOBODY[0]);
        command.args(&NOBODY[1..]).arg(&copy);
        let ended = run(program.command_of(command, arguments), input);
        std::fs::remove_file(copy).expect("the copy can be removed");
        ended
    }
}

/// Runs any program to the end with `input` on stdin.
pub fn run(mut command: Command, input: &[u8]) -> Ended {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    // Written aside, because a child that answers while it reads would otherwise wait for us and we for it.
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().expect("the program ends");
    writer.join().expect("the input is written");
    Ended {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Ended {
    /// The call succeeded; its output.
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    /// The one JSON document on stdout, whatever the exit code.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}{}", self.stdout, self.stderr))
    }

    pub fn json_lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
    }

    /// The error document on stderr.
    pub fn error(&self) -> Value {
        let value: Value = serde_json::from_str(&self.stderr).unwrap_or_else(|e| panic!("{e}: {}", self.stderr));
        value["error"].clone()
    }
}

/// A call under way.
#[derive(Debug)]
pub struct Running {
    pub stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
    child: Child,
}

impl Running {
    /// Sends a line; false if the other side is gone.
    pub fn send(&mut self, line: &str) -> bool {
        let sent = self.stdin.as_mut().map(|stdin| writeln!(stdin, "{line}").and_then(|()| stdin.flush()));
        matches!(sent, Some(Ok(())))
    }

    /// The next line of its output; nothing at the end.
    pub fn line(&mut self) -> Option<String> {
        read_line(&mut self.stdout)
    }

    pub fn error_line(&mut self) -> Option<String> {
        read_line(&mut self.stderr)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, by its name without SIG.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.id().to_string()]).status().expect("there is kill");
        assert!(sent.success(), "it is there to be signalled");
    }

    /// All processes below this one, each with the time it began: a number may be used again.
    pub fn below(&self) -> Vec<Process> {
        let (mut found, mut parents) = (Vec::new(), vec![self.id()]);
        while let Some(parent) = parents.pop() {
            let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
            for children in tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok()) {
                for id in children.split_whitespace().filter_map(|id| id.parse().ok()) {
                    found.extend(Process::find(id));
                    parents.push(id);
                }
            }
        }
        found
    }

    /// SIGKILL, also to processes of its own that would survive it, as when the machine stops; then the lines that were
    /// still on their way.
    pub fn kill(mut self) -> Vec<String> {
        let detached: Vec<Process> =
            self.below().into_iter().filter(|process| process.has_argument(DETACHED)).collect();
        self.child.kill().expect("it can be killed");
        detached.iter().for_each(Process::kill);
        self.child.wait().expect("it ends");
        std::iter::from_fn(|| self.line()).collect()
    }

    /// SIGKILL to the process alone; what survives it goes on.
    pub fn kill_alone(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Nobody reads its output any more; waits for the end.
    pub fn abandon(self) -> i32 {
        let Self { stdin, stdout, stderr, mut child } = self;
        drop((stdin, stdout, stderr));
        child.wait().expect("it ends").code().unwrap_or(-1)
    }

    /// No more input; waits for the end.
    pub fn finish(mut self) -> (i32, Vec<String>, Vec<String>) {
        self.stdin = None;
        let lines: Vec<_> = std::iter::from_fn(|| self.line()).collect();
        let errors: Vec<_> = std::iter::from_fn(|| self.error_line()).collect();
        (self.child.wait().expect("it ends").code().unwrap_or(-1), lines, errors)
    }
}

/// A call under way that nobody talks to. Gone with its owner.
#[derive(Debug)]
pub struct Launched(Child);

impl Launched {
    /// Sends a signal, by its name without SIG; false if there is nobody to get it.
    pub fn signal(&self, name: &str) -> bool {
        let sent = Command::new("kill").args(["-s", name, &self.0.id().to_string()]).stderr(Stdio::null()).status();
        sent.is_ok_and(|status| status.success())
    }

    /// SIGKILL, and waits for the end of it.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// The code it ended with, once it has.
    pub fn ended(&mut self) -> Option<i32> {
        self.0.try_wait().ok().flatten().map(|status| status.code().unwrap_or(-1))
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The argument of processes that survive their caller.
const DETACHED: &str = "--actum-detached";

/// Some process of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub id: u32,
    began: String,
}

impl Process {
    /// One that is there and does something: who is dead and only not yet buried is not.
    fn find(id: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name before the bracket may hold anything.
        let words: Vec<&str> = stat.get(stat.rfind(')')? + 2..)?.split(' ').collect();
        let began = words.get(19)?.to_string();
        (!matches!(words.first(), Some(&"Z" | &"X"))).then_some(Self { id, began })
    }

    pub fn has_argument(&self, word: &str) -> bool {
        let line = std::fs::read(format!("/proc/{}/cmdline", self.id)).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())
    }

    pub fn kill(&self) {
        let _ = Command::new("kill").args(["-KILL", &self.id.to_string()]).stderr(Stdio::null()).status();
    }

    pub fn lives(&self) -> bool {
        Self::find(self.id).as_ref() == Some(self)
    }

    /// Processes with this word among their arguments.
    pub fn with_argument(word: &str) -> Vec<Self> {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let with = processes.filter(|process| {
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())
        });
        with.filter_map(|process| Self::find(process.file_name().to_str()?.parse().ok()?)).collect()
    }
}

fn read_line(from: &mut dyn std::io::BufRead) -> Option<String> {
    let mut line = String::new();
    // A line cut off by a kill is no line.
    let read = from.read_line(&mut line).unwrap_or(0);
    (read > 0 && line.ends_with('\n')).then(|| line.trim_end().to_owned())
}
