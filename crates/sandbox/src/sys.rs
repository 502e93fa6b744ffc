//! System calls that the compiler cannot check: the only `unsafe` of the product. Each function is one call, or the few
//! that belong together; none of them decides anything.
#![expect(unsafe_code, reason = "processes, filters and mounts that no safe library offers; each says why it is sound")]

use std::ffi::{CStr, c_int, c_uint};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::io::Result;
use rustix::process::Pid;
use rustix::thread::UnshareFlags;

/// Gives this process mounts of its own, and if `user` is said also a user namespace to make them in.
pub(crate) fn unshare_mounts(user: bool) -> Result<()> {
    let flags = if user { UnshareFlags::NEWUSER | UnshareFlags::NEWNS } else { UnshareFlags::NEWNS };
    // SAFETY: the file descriptor table stays shared, which is what the call is unsafe for. The kernel itself refuses
    // a user namespace to a process with more than one thread.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Sends a signal to all processes that this one sees but itself. For the first process of a cell, which sees only those of
/// the cell.
pub(crate) fn signal_all(signal: c_int) {
    // SAFETY: a call with two numbers; it touches no memory.
    unsafe { libc::kill(-1, signal) };
}

/// Hides from this process where in the control groups it is.
pub(crate) fn unshare_groups() -> Result<()> {
    // SAFETY: nothing but the view of the groups changes.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWCGROUP) }
}

/// Gives this process a network with nobody in it.
pub(crate) fn unshare_network() -> Result<()> {
    // SAFETY: sockets that are open stay where they are; nothing else refers to the network.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
}

/// Which of the two that came out of a fork we are.
#[derive(Debug)]
pub(crate) enum Side {
    Parent { child: Pid, handle: OwnedFd },
    Child,
}

/// Namespaces that a new process gets for itself.
pub(crate) const OWN_NAMESPACES: u64 =
    (libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS) as u64;
pub(crate) const OWN_USERS: u64 = libc::CLONE_NEWUSER as u64;

/// A process with a second thread cannot be copied: the thread would be missing, with whatever locks it held.
pub(crate) fn require_single_thread() -> io::Result<()> {
    match std::fs::read_dir("/proc/self/task")?.count() {
        1 => Ok(()),
        _ => Err(io::Error::other("a process with several threads cannot make cells")),
    }
}

/// Makes a second process out of this one, with a handle on it, and namespaces of its own if `flags` say so. Those who
/// call it have a single thread.
pub(crate) fn fork(flags: u64) -> io::Result<Side> {
    let mut handle: c_int = -1;
    // SAFETY: all zeroes is the default of every field.
    let mut arguments: libc::clone_args = unsafe { MaybeUninit::zeroed().assume_init() };
    arguments.flags = flags | libc::CLONE_PIDFD as u64;
    arguments.pidfd = (&raw mut handle) as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: no CLONE_VM and no stack, so the child has a copy of everything, as after fork; the callers have one
    // thread. The kernel writes the handle into our own variable.
    let child = unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>()) };
    match child {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child),
        pid => {
            let child = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
            // SAFETY: the kernel has just opened it for us.
            Ok(Side::Parent { child, handle: unsafe { OwnedFd::from_raw_fd(handle) } })
        }
    }
}

/// Ends this process at once: no destructors, no buffers written, nothing of the parent's twice.
pub(crate) fn exit(code: u8) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(c_int::from(code)) }
}

/// Sends a signal to everything this process may send to. For the first process of a pid namespace: all others in it.
pub(crate) fn kill_all(signal: c_int) {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(-1, signal) };
}

/// A file that can be read when one of the signals has come, which then are no longer delivered.
pub(crate) fn signal_file(signals: &[c_int]) -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before it is used, and lives on our stack.
    unsafe {
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            file => Ok(OwnedFd::from_raw_fd(file)),
        }
    }
}

/// All signals as a program finds them that was just started: delivered, and none ignored.
pub(crate) fn reset_signals() {
    // SAFETY: the set is initialised; the default action is no function of ours.
    unsafe {
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// Gives an open file another number; whatever had that one is closed.
pub(crate) fn keep_as(file: OwnedFd, number: c_int) -> Option<OwnedFd> {
    if file.as_raw_fd() == number {
        return Some(file);
    }
    // SAFETY: the callers are about to close all numbers they do not know, this one among them; nobody uses it.
    unsafe {
        match libc::dup3(file.as_raw_fd(), number, libc::O_CLOEXEC) {
            -1 => None,
            number => Some(OwnedFd::from_raw_fd(number)),
        }
    }
}

/// Closes every file from `first` on.
pub(crate) fn close_from(first: c_uint) {
    // SAFETY: what is closed here is used by nobody: the process is about to become another program.
    unsafe { libc::syscall(libc::SYS_close_range, first, c_uint::MAX, 0) };
}

/// Becomes the program at a path, or in the open file itself if the path is empty. Comes back only if that failed.
pub(crate) fn execute(at: BorrowedFd<'_>, path: &CStr, arguments: &[&CStr], environment: &[&CStr]) -> io::Error {
    let list = |texts: &[&CStr]| -> Vec<*const libc::c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (list(arguments), list(environment));
    let flags = if path.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    // SAFETY: both lists end with a null and point to texts that live as long as the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            at.as_raw_fd(),
            path.as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            flags,
        )
    };
    io::Error::last_os_error()
}

/// Processor time of all children that have ended and been waited for, and of theirs.
pub(crate) fn children_cpu_us() -> u64 {
    // SAFETY: the kernel fills the structure; zeroes are valid in it.
    let used = unsafe {
        let mut used: libc::rusage = MaybeUninit::zeroed().assume_init();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut used);
        used
    };
    let us = |time: libc::timeval| u64::try_from(time.tv_sec * 1_000_000 + time.tv_usec).unwrap_or(0);
    us(used.ru_utime) + us(used.ru_stime)
}

/// Changes what a mount, and if `below` is said all mounts below it, allow. With `users`, its files belong to others.
pub(crate) fn set_mount(tree: BorrowedFd<'_>, set: u64, users: Option<BorrowedFd<'_>>, below: bool) -> io::Result<()> {
    let idmap = if users.is_some() { libc::MOUNT_ATTR_IDMAP } else { 0 };
    let attributes = libc::mount_attr {
        attr_set: set | idmap,
        attr_clr: 0,
        // A tree that is taken from the machine's own mounts would go on sharing what is mounted on either.
        propagation: libc::MS_PRIVATE,
        userns_fd: users.map_or(0, |users| users.as_raw_fd() as u64),
    };
    change_mount(tree, &attributes, below)
}

/// Allows again what was ruled out.
pub(crate) fn unset_mount(tree: BorrowedFd<'_>, clear: u64) -> io::Result<()> {
    change_mount(tree, &libc::mount_attr { attr_set: 0, attr_clr: clear, propagation: 0, userns_fd: 0 }, false)
}

fn change_mount(tree: BorrowedFd<'_>, attributes: &libc::mount_attr, below: bool) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if below { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the structure lives as long as the call, and its size is told.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Puts a filter on this process and all its children. With `listen`, a file on which the filter asks.
pub(crate) fn filter(program: &[libc::sock_filter], listen: bool) -> io::Result<Option<OwnedFd>> {
    let length = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    let set = |flags: libc::c_ulong| {
        // SAFETY: the kernel copies the program, which lives as long as the call, and never writes to it.
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) }
    };
    let patient = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let done = match listen {
        false => set(0),
        // Before Linux 5.19 a signal may take the question back.
        true => match set(patient) {
            -1 => set(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER),
            file => file,
        },
    };
    match done {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel has just opened it for us.
        file if listen => Ok(Some(unsafe { OwnedFd::from_raw_fd(i32::try_from(file).map_err(io::Error::other)?) })),
        _ => Ok(None),
    }
}

/// Takes the filter's next question and gives its number. Nothing if who asked is gone.
pub(crate) fn next_question(filter: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    // SAFETY: all zeroes is what the kernel wants to find there.
    let mut asked: libc::seccomp_notif = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the kernel fills the structure, whose size is part of the request's number.
    let done = unsafe { libc::ioctl(filter.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV as _, &raw mut asked) };
    if done != 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::ENOENT | libc::EINTR) => Ok(None),
            _ => Err(error),
        };
    }
    Ok(Some(asked.id))
}

/// Lets the call through, or has it fail with an error. Who asked may be gone by now; that is no matter.
pub(crate) fn answer(filter: BorrowedFd<'_>, question: u64, error: Option<c_int>) {
    let flags = if error.is_none() { libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32 } else { 0 };
    let mut answer = libc::seccomp_notif_resp { id: question, val: 0, error: -error.unwrap_or(0), flags };
    // SAFETY: the kernel reads the structure, whose size is part of the request's number.
    unsafe { libc::ioctl(filter.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND as _, &raw mut answer) };
}

/// Brings the network interface `lo` up.
pub(crate) fn bring_loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: all zeroes is a valid request; the name fits with its end.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the kernel reads the request.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw mut request) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
