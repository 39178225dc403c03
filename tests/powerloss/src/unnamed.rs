//! Unnamed files (O_TMPFILE), which the `fuser` crate does not know: this stands between the
//! kernel's device and the crate, answers that one request itself and hands all others through.
//! On ext4 and XFS a store makes its files unnamed and links them once they are durable; a disk
//! without them would try another path than the one that counts.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, recv, send, setsockopt, shutdown,
    socketpair, sockopt,
};

use crate::power::{Damage, Operation, Shared, Verdict};

/// Largest write or read that the kernel may ask for, in bytes: a message of the socket must hold
/// it.
pub const LARGEST: u32 = 256 << 10;
/// Room for a request or an answer with its headers.
const MESSAGE: usize = LARGEST as usize + (64 << 10);
/// The request's code.
const TMPFILE: u32 = 51;
/// Bytes of a request's header, and of an answer's.
const REQUEST: usize = 40;
const ANSWER: usize = 16;
/// Bytes of what an answer to this request tells of the entry and of the open file.
const ENTRY: usize = 128;
const OPEN: usize = 16;
/// Seconds that the kernel may keep attributes.
const KEPT: u64 = 3600;

/// The two threads between the kernel and the crate.
pub struct Between {
    threads: Vec<JoinHandle<()>>,
}

impl Between {
    /// Starts them on an open device; the descriptor is the crate's end.
    pub fn start(device: File, shared: &Arc<Shared>) -> io::Result<(Between, OwnedFd)> {
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        for end in [&ours, &theirs] {
            setsockopt(end, sockopt::SndBufForce, &(16 << 20))?;
        }
        let (device, ours) = (Arc::new(device), Arc::new(ours));
        let up = (Arc::clone(&device), Arc::clone(&ours), Arc::clone(shared));
        let threads = vec![
            std::thread::spawn(move || hand_up(&up.0, &up.1, &up.2)),
            std::thread::spawn(move || hand_down(&device, &ours)),
        ];
        Ok((Between { threads }, theirs))
    }

    /// Waits for their end, which comes with that of the mount and of the crate's session.
    pub fn end(self) {
        for thread in self.threads {
            // A panic was reported by the thread itself.
            let _ = thread.join();
        }
    }
}

fn hand_up(device: &File, ours: &OwnedFd, shared: &Shared) {
    let mut message = vec![0; MESSAGE];
    let mut from = device;
    loop {
        let len = match from.read(&mut message) {
            Ok(len) => len,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOENT)) => {
                continue;
            }
            Err(error) => {
                // With ENODEV the mount is gone, in order.
                if error.raw_os_error() != Some(libc::ENODEV) {
                    eprintln!("the disk's device cannot be read: {error}");
                }
                break;
            }
        };
        let request = &message[..len];
        let result = if word(request, 4) == TMPFILE {
            let answer = make_unnamed(request, shared);
            // The kernel may have given the request up.
            let _ = from.write(&answer);
            Ok(len)
        } else {
            hand_over(ours, request)
        };
        if let Err(error) = result {
            eprintln!("a request of {len} bytes does not reach the disk: {error}");
            break;
        }
    }
    // The other end may be gone already.
    let _ = shutdown(ours.as_raw_fd(), Shutdown::Both);
}

fn hand_down(device: &File, ours: &OwnedFd) {
    let mut message = vec![0; MESSAGE];
    let mut to = device;
    loop {
        match recv(ours.as_raw_fd(), &mut message, MsgFlags::empty()) {
            Ok(0) => break,
            // The kernel may have given the request up.
            Ok(len) => drop(to.write(&message[..len])),
            Err(error) if is_passing(error) => {}
            Err(error) => {
                eprintln!("the disk's answers cannot be read: {error}");
                break;
            }
        }
    }
}

/// Sends one request; waits where the kernel has no memory for it at the moment.
fn hand_over(ours: &OwnedFd, request: &[u8]) -> nix::Result<usize> {
    loop {
        match send(ours.as_raw_fd(), request, MsgFlags::MSG_NOSIGNAL) {
            Err(error) if is_passing(error) => std::thread::yield_now(),
            sent => return sent,
        }
    }
}

fn is_passing(error: Errno) -> bool {
    matches!(error, Errno::EINTR | Errno::ENOBUFS | Errno::ENOMEM)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_ne_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | (u64::from(word(bytes, at + 4)) << 32)
}

/// Makes a file without a name; the answer to the request.
fn make_unnamed(request: &[u8], shared: &Shared) -> Vec<u8> {
    let mode = word(request, REQUEST + 4);
    let directory = long(request, 16);
    let mut power = shared.lock();
    let number = match power.judge(Operation::Naming, directory) {
        _ if !power.unnamed => Err(libc::EOPNOTSUPP),
        Verdict::Go => Ok(power.disk.make_unnamed(directory, (mode & 0o7777) as u16)),
        Verdict::GoAndCut => {
            power.cut_now();
            Err(libc::EIO)
        }
        Verdict::Fail(Damage::Error(error)) => Err(error),
        Verdict::Fail(Damage::Short) => Err(libc::EIO),
    };
    drop(power);
    let mut answer = vec![0; ANSWER];
    match number {
        Ok(number) => {
            answer.extend_from_slice(&entry(number, mode));
            answer.resize(ANSWER + ENTRY + OPEN, 0);
        }
        Err(error) => {
            shared.tell();
            answer[4..8].copy_from_slice(&(-error).to_ne_bytes());
        }
    }
    let len = answer.len() as u32;
    answer[..4].copy_from_slice(&len.to_ne_bytes());
    answer[8..16].copy_from_slice(&request[8..16]);
    answer
}

/// Node id, generation, how long both may be kept, then the attributes.
fn entry(number: u64, mode: u32) -> Vec<u8> {
    let longs = [number, 0, KEPT, KEPT, 0, number, 0, 0, 0, 0, 0];
    let words = [
        0,
        0,
        0,
        libc::S_IFREG | (mode & 0o7777),
        1,
        0,
        0,
        0,
        4096,
        0,
    ];
    let mut bytes: Vec<u8> = longs
        .iter()
        .flat_map(|long: &u64| long.to_ne_bytes())
        .collect();
    bytes.extend(words.iter().flat_map(|word: &u32| word.to_ne_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_length_the_kernel_expects() {
        assert_eq!(entry(7, 0o644).len(), ENTRY);
    }
}
