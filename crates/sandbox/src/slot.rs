//! A cell before it is known for whom: a first process in namespaces of its own, which waits to be told. Made by the
//! helper, which has a single thread and little memory to copy.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::AtFlags;
use rustix::process::{Pid, Signal, WaitOptions};
use serde::{Deserialize, Serialize};

use crate::cell::{Access, Cell, Kept, Limits, Source, Wall};
use crate::cgroup::{Group, Groups, Kind};
use crate::init::{self, USER};
use crate::sys::{self, Side};
use crate::{channel, root};

/// Users whom no system gives to anybody; cells of root's run as them.
const FIRST_USER: u32 = 0x3000_0000;
const USERS: u32 = 0x1000_0000;

/// Users that one helper takes turns with.
const TURNS: u32 = 64;

/// How long a cell lives before it joins a control group, if it was made while somebody waited for it. Most tools have
/// ended by then, and joining takes longer than they do.
const GROUP_AFTER: Duration = Duration::from_millis(25);

/// Each time there are fewer left to be moved.
const JOINS_MAX: usize = 10;

/// What the first process is told once it is under way.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// From now on the system counts, in the files beside this.
    Grouped,
}

/// Where slots come from.
#[derive(Debug)]
pub(crate) struct Nursery {
    /// Looked for when they are needed: to find out takes as long as a cell does.
    groups: OnceCell<Groups>,
    made: u32,
    /// Limits of the last cell.
    usual: Option<Limits>,
    first_user: Option<u32>,
    /// Views of the disk in which what belongs to one owner belongs to the cell, by cell's user and owner.
    views: BTreeMap<(u32, u32, u32), OwnedFd>,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub first: Pid,
    pub handle: OwnedFd,
    pub orders: UnixStream,
    pub group: Option<Group>,
    /// When it is to be put into one, if it is in none, and with which limits.
    pub group_at: Option<Instant>,
    limits: Option<Limits>,
    /// Its place in the order, and the user outside if that is not our own.
    pub turn: u32,
    pub user: Option<u32>,
}

impl Nursery {
    pub(crate) fn new() -> Self {
        let is_root = rustix::process::geteuid().is_root();
        let own = std::process::id().wrapping_mul(TURNS) % (USERS - TURNS);
        Self {
            groups: OnceCell::new(),
            made: 0,
            usual: None,
            first_user: is_root.then_some(FIRST_USER + own),
            views: BTreeMap::new(),
        }
    }

    fn groups(&self) -> &Groups {
        self.groups.get_or_init(|| {
            let groups = Groups::find();
            groups.sweep();
            groups
        })
    }

    /// Root can always make groups where there are any; others only where somebody has let them.
    fn may_group(&self) -> bool {
        self.first_user.is_some() || !self.groups().is_empty()
    }

    /// `isolated`: with a network of its own. `ahead`: nobody waits for it, so it can join its control group at once,
    /// which may take milliseconds.
    pub(crate) fn make(&mut self, isolated: bool, ahead: bool) -> io::Result<Slot> {
        let turn = self.made;
        self.made = self.made.wrapping_add(1);
        let user = self.first_user.map(|first| first + turn % TURNS);
        let group =
            if ahead && !self.groups().is_empty() { Some(self.groups().make(&group_name(turn))?) } else { None };
        let (orders, theirs) = UnixStream::pair()?;
        match sys::fork(sys::OWN_NAMESPACES)? {
            Side::Child => {
                drop(orders);
                init::run(&alone(theirs))
            }
            Side::Parent { child, handle } => {
                drop(theirs);
                let mut slot = Slot { first: child, handle, orders, group, group_at: None, limits: None, turn, user };
                let settled = slot.settle().and_then(|()| match (&slot.group, &self.usual) {
                    (Some(group), Some(usual)) => group.limit(usual).map(|()| slot.limits = Some(usual.clone())),
                    _ => Ok(()),
                });
                // Without it the process waits no longer, and ends.
                let go = match (&settled, isolated) {
                    (Err(_), _) => init::NOTHING,
                    (Ok(()), true) => init::ISOLATED,
                    (Ok(()), false) => init::OPEN,
                };
                (&mut &slot.orders).write_all(&[go])?;
                if settled.is_err() {
                    slot.kill();
                    let _ = rustix::process::waitpid(Some(slot.first), WaitOptions::empty());
                    let _ = slot.group.as_ref().map(Group::remove);
                }
                settled.map(|()| slot)
            }
        }
    }

    /// What control groups do for a cell here.
    pub(crate) fn kept(&self) -> Vec<Kept> {
        let memory = self.groups().has(Kind::Memory).map(|version| (Wall::Memory, version));
        let found =
            memory.map(|(wall, version)| Kept { wall, by: format!("control group, version {version}"), weaker: false });
        found.into_iter().collect()
    }

    /// Sets the limits of the group, now or when there is one.
    pub(crate) fn limit(&mut self, slot: &mut Slot, cell: &Cell) -> io::Result<()> {
        match &slot.group {
            // Often it is like the last one, and set already.
            Some(_) if slot.limits.as_ref() == Some(&cell.limits) => Ok(()),
            Some(group) => {
                self.usual = Some(cell.limits.clone());
                group.limit(&cell.limits)
            }
            None => {
                slot.group_at = self.may_group().then(|| Instant::now() + GROUP_AFTER);
                slot.limits = Some(cell.limits.clone());
                Ok(())
            }
        }
    }

    /// Puts a cell that is under way into a group. Until then its first process has counted for itself.
    pub(crate) fn group(&self, slot: &mut Slot) {
        slot.group_at = None;
        if self.groups().is_empty() {
            return;
        }
        let (Some(limits), Ok(group)) = (slot.limits.take(), self.groups().make(&group_name(slot.turn))) else {
            return;
        };
        let join = || -> io::Result<()> {
            group.limit(&limits)?;
            // Who is made by somebody in the group is in it; who was made before he was moved is found next time.
            for _ in 0..JOINS_MAX {
                let found = processes_below(slot.first.as_raw_nonzero().get());
                // But for the first: it has to live to tell that there was no memory left.
                let missing: Vec<i32> = found.into_iter().skip(1).filter(|pid| !group.has(*pid)).collect();
                if missing.is_empty() {
                    break;
                }
                // One that has ended meanwhile cannot be moved, and need not.
                missing.into_iter().for_each(|pid| drop(group.join(pid)));
            }
            let counters = group.counters();
            channel::send(&slot.orders, &Order::Grouped, &channel::borrow(&counters))
        };
        // If that fails, the cell has ended meanwhile, or it goes on counting for itself.
        let _ = join();
        slot.group = Some(group);
    }

    /// The trees that a cell was granted, in the order of `Grant::origins`, as somebody sees them who is nobody outside.
    /// Only root can give these, and only for root they are needed.
    pub(crate) fn trees(
        &mut self,
        cell: &Cell,
        slot: &Slot,
        kept: &mut Vec<Kept>,
    ) -> Result<Option<Vec<OwnedFd>>, String> {
        let Some(user) = slot.user else { return Ok(None) };
        let mut trees = Vec::new();
        let origins =
            cell.grants.iter().flat_map(|grant| grant.origins().into_iter().map(move |origin| (grant, origin)));
        for (grant, origin) in origins {
            let shown = |e: io::Error| format!("cannot show {}: {e}", origin.path.display());
            let tree = root::tree(origin).map_err(shown)?;
            let how = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
            let owner = rustix::fs::statat(&tree, origin.owned_as, how).map_err(|e| shown(e.into()))?;
            // Before anything else: what is mounted on it is not to be seen on the machine, nor the other way round.
            sys::set_mount(tree.as_fd(), 0, None, true).map_err(shown)?;
            // An overlay cannot do without: it writes into its layers whatever the cell may do.
            if grant.access == Access::Look && !matches!(grant.from, Source::Overlay { .. }) {
                trees.push(tree);
                continue;
            }
            let view = self.view(user, owner.st_uid, owner.st_gid).map_err(shown)?;
            if let Err(e) = sys::set_mount(tree.as_fd(), 0, Some(view.as_fd()), true) {
                let by =
                    format!("{}: its file system cannot show files as the cell's own ({e})", origin.path.display());
                if !cell.weaker.contains(&Wall::Owners) {
                    return Err(format!("owners: {by}"));
                }
                kept.push(Kept { wall: Wall::Owners, by, weaker: true });
            }
            trees.push(tree);
        }
        Ok(Some(trees))
    }

    fn view(&mut self, user: u32, owner: u32, group: u32) -> io::Result<&OwnedFd> {
        use std::collections::btree_map::Entry;
        match self.views.entry((user, owner, group)) {
            Entry::Occupied(found) => Ok(found.into_mut()),
            Entry::Vacant(free) => Ok(free.insert(view(user, owner, group)?)),
        }
    }
}

/// Closes what this process has open of its parent's, but for the one line, which gets a number of its own.
fn alone(line: UnixStream) -> UnixStream {
    const LINE: i32 = 3;
    let Some(line) = sys::keep_as(line.into(), LINE) else { sys::exit(1) };
    sys::close_from(LINE as u32 + 1);
    UnixStream::from(line)
}

impl Slot {
    /// Says who the first process is, and puts it in its group.
    fn settle(&self) -> io::Result<()> {
        let folder = format!("/proc/{}", self.first.as_raw_nonzero());
        let write = |name: &str, text: String| fs::write(Path::new(&folder).join(name), text);
        match self.user {
            Some(user) => {
                write("uid_map", format!("{USER} {user} 1"))?;
                write("gid_map", format!("{USER} {user} 1"))?;
            }
            None => {
                let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
                write("setgroups", "deny".to_owned())?;
                write("uid_map", format!("{USER} {user} 1"))?;
                write("gid_map", format!("{USER} {group} 1"))?;
            }
        }
        let Some(group) = &self.group else { return Ok(()) };
        // In the group, and never the one that has to go for want of memory; whoever may not say so is no worse off.
        let _ = write("oom_score_adj", "-1000".to_owned());
        group.join(self.first.as_raw_nonzero().get())
    }

    pub(crate) fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.handle, Signal::KILL);
    }
}

fn group_name(turn: u32) -> String {
    format!("{}-{turn}", std::process::id())
}

/// A process and all that come from it.
fn processes_below(first: i32) -> Vec<i32> {
    let mut found = vec![first];
    let mut at = 0;
    while let Some(pid) = found.get(at) {
        at += 1;
        for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()));
        }
    }
    found
}

/// A namespace in which `owner` on the disk is `user`, and everybody else is who he is. It lives as long as it is held.
fn view(user: u32, owner: u32, group: u32) -> io::Result<OwnedFd> {
    let (line, theirs) = UnixStream::pair()?;
    match sys::fork(sys::OWN_USERS)? {
        Side::Child => {
            drop(line);
            let mut end = [0];
            let _ = io::Read::read(&mut &theirs, &mut end);
            sys::exit(0)
        }
        Side::Parent { child, .. } => {
            drop(theirs);
            let folder = format!("/proc/{}", child.as_raw_nonzero());
            let made = fs::write(format!("{folder}/uid_map"), exchange(owner, user))
                .and_then(|()| fs::write(format!("{folder}/gid_map"), exchange(group, user)))
                .and_then(|()| File::open(format!("{folder}/ns/user")));
            drop(line);
            let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
            made.map(OwnedFd::from)
        }
    }
}

/// A map of all ids to themselves but `from`, which becomes `to`.
fn exchange(from: u32, to: u32) -> String {
    let mut lines = vec![format!("{from} {to} 1")];
    let mut same = |first: u32, end: u32| {
        if end > first {
            lines.push(format!("{first} {first} {}", end - first));
        }
    };
    let (low, high) = (from.min(to), from.max(to));
    same(0, low);
    same(low + 1, high);
    same(high + 1, u32::MAX - 1);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_leave_everybody_else_who_he_is() {
        assert_eq!(exchange(0, 1000), "0 1000 1\n1 1 999\n1001 1001 4294966293");
        assert_eq!(exchange(7, 9), "7 9 1\n0 0 7\n8 8 1\n10 10 4294967284");
    }
}
