//! System calls that the compiler cannot check: the only `unsafe` of the product.
#![expect(unsafe_code, reason = "leaving namespaces is unsafe where threads share what is left; see below")]

use rustix::io::Result;
use rustix::thread::UnshareFlags;

/// Gives this process mounts of its own, and if `user` is said also a user namespace to make them in.
pub(crate) fn unshare_mounts(user: bool) -> Result<()> {
    let flags = if user { UnshareFlags::NEWUSER | UnshareFlags::NEWNS } else { UnshareFlags::NEWNS };
    // SAFETY: the file descriptor table stays shared, which is what the call is unsafe for. The kernel itself refuses
    // a user namespace to a process with more than one thread.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}
