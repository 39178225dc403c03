//! The disk through io_uring: direct writes out of the registered tail ring into registered files.
//!
//! Where the kernel refuses to pin the tail (LimitMEMLOCK), the same writes go unregistered. The writer's
//! bell is polled in the ring, so one wait covers completions and wake-ups.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue, types};

use super::aligned::AlignedMemory;
use super::{Completion, Disk, FileSlot, MAX_FILES, MAX_REQUESTS, Request, Source, ZERO_BYTES};
use crate::append_queue::Doorbell;
use crate::tail::Tail;

/// Ticket of the poll on the writer's bell; the writer's own tickets count up from zero.
const BELL_TICKET: u64 = u64::MAX;
/// Registered buffer: the tail.
const TAIL_BUFFER: u16 = 0;
/// Registered buffer: zeros.
const ZERO_BUFFER: u16 = 1;
/// `RWF_DSYNC`.
const DSYNC: i32 = libc::RWF_DSYNC;

/// See the module's description.
pub struct UringDisk {
    ring: IoUring,
    tail: Arc<Tail>,
    zeros: AlignedMemory,
    bell: Arc<Doorbell>,
    files: [Option<File>; MAX_FILES],
    registered_buffers: bool,
    registered_files: bool,
    no_iowait: bool,
    bell_armed: bool,
    in_flight: usize,
}

impl UringDisk {
    /// Makes the ring; call on the thread that will use it. The warning says what works less well than it
    /// could and why.
    pub fn new(tail: Arc<Tail>, bell: Arc<Doorbell>) -> io::Result<(UringDisk, Option<String>)> {
        let ring = make_ring()?;
        if !ring.params().is_feature_ext_arg() {
            return Err(io::Error::other(
                "io_uring without timed waits (kernel < 5.11)",
            ));
        }
        let zeros = AlignedMemory::new(ZERO_BYTES)?;
        let mut disk = UringDisk {
            no_iowait: ring.params().is_feature_no_iowait(),
            ring,
            tail,
            zeros,
            bell,
            files: [const { None }; MAX_FILES],
            registered_buffers: false,
            registered_files: false,
            bell_armed: false,
            in_flight: 0,
        };
        let warning = disk
            .register_buffers()
            .err()
            .map(|error| disk.memlock_warning(&error));
        disk.registered_files = disk
            .ring
            .submitter()
            .register_files_sparse(MAX_FILES as u32)
            .is_ok();
        Ok((disk, warning))
    }

    fn register_buffers(&mut self) -> io::Result<()> {
        let buffers = [self.tail.memory(), &self.zeros].map(|memory| libc::iovec {
            iov_base: memory.as_ptr().cast(),
            iov_len: memory.len(),
        });
        // SAFETY: both buffers are owned by this value (the tail through its `Arc`) and the ring is dropped first.
        unsafe { self.ring.submitter().register_buffers(&buffers) }?;
        self.registered_buffers = true;
        Ok(())
    }

    fn memlock_warning(&self, error: &io::Error) -> String {
        let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK)
            .map_or_else(
                |_| "unknown".to_owned(),
                |(soft, _)| format!("{soft} bytes"),
            );
        format!(
            "cannot register the tail cache of {} bytes with io_uring ({error}); raise LimitMEMLOCK (now \
             {limit}); writing unregistered",
            self.tail.size()
        )
    }

    fn write_entry(
        &self,
        file: FileSlot,
        offset: u64,
        len: usize,
        source: Source,
        durable: bool,
    ) -> squeue::Entry {
        let (start, size, buffer) = match source {
            Source::Tail(position) => (position, self.tail.memory(), TAIL_BUFFER),
            Source::Zeros => (0, &self.zeros, ZERO_BUFFER),
        };
        assert!(
            start <= size.len() && len <= size.len() - start,
            "a write outside its buffer"
        );
        let flags = if durable { DSYNC } else { 0 };
        // SAFETY: the start lies within the mapping (asserted above).
        let bytes = unsafe { size.as_ptr().add(start) }.cast_const();
        let len = len as u32;
        // The two kinds of descriptor are two types to the library.
        if self.registered_files {
            let file = types::Fixed(file.0);
            if self.registered_buffers {
                let write = opcode::WriteFixed::new(file, bytes, len, buffer);
                write.offset(offset).rw_flags(flags).build()
            } else {
                let write = opcode::Write::new(file, bytes, len);
                write.offset(offset).rw_flags(flags).build()
            }
        } else {
            let file = types::Fd(self.raw_file(file));
            if self.registered_buffers {
                let write = opcode::WriteFixed::new(file, bytes, len, buffer);
                write.offset(offset).rw_flags(flags).build()
            } else {
                let write = opcode::Write::new(file, bytes, len);
                write.offset(offset).rw_flags(flags).build()
            }
        }
    }

    fn sync_entry(&self, file: FileSlot) -> squeue::Entry {
        let flags = types::FsyncFlags::DATASYNC;
        if self.registered_files {
            opcode::Fsync::new(types::Fixed(file.0))
                .flags(flags)
                .build()
        } else {
            opcode::Fsync::new(types::Fd(self.raw_file(file)))
                .flags(flags)
                .build()
        }
    }

    fn raw_file(&self, slot: FileSlot) -> i32 {
        let file = self.files[slot.0 as usize].as_ref();
        // The writer submits to attached files only.
        file.expect("the file is attached").as_raw_fd()
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: buffers and files outlive the request: they are owned by this value, which waits in `drop`
        // until nothing is in flight; ranges were checked when the entry was built.
        let pushed = unsafe { self.ring.submission().push(entry) };
        // Twice as many entries as requests that can be in flight.
        pushed.expect("the submission queue has room for every request");
    }

    fn arm_bell(&mut self) {
        if !self.bell_armed {
            let fd = types::Fd(self.bell.as_fd().as_raw_fd());
            let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).build();
            self.push(&entry.user_data(BELL_TICKET));
            self.bell_armed = true;
        }
    }

    fn enter(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        let timespec = timeout.map(types::Timespec::from);
        let mut args = types::SubmitArgs::new();
        if let Some(timespec) = &timespec {
            args = args.timespec(timespec);
        }
        let submitter = self.ring.submitter();
        let entered = if self.no_iowait && want > 0 {
            submitter.submit_with_args_and_flags(want, &args, EnterFlags::NO_IOWAIT)
        } else {
            submitter.submit_with_args(want, &args)
        };
        match entered.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) | Err((Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN), _)) => {
                Ok(())
            }
            Err((_, error)) => Err(error),
        }
    }

    fn collect(&mut self, done: &mut Vec<Completion>) {
        let mut rang = false;
        for entry in self.ring.completion() {
            if entry.user_data() == BELL_TICKET {
                rang = true;
                continue;
            }
            self.in_flight -= 1;
            done.push(completion(&entry));
        }
        if rang {
            self.bell_armed = false;
            self.bell.hush();
        }
    }
}

fn completion(entry: &cqueue::Entry) -> Completion {
    let result = usize::try_from(entry.result())
        .map_err(|_| io::Error::from_raw_os_error(entry.result().wrapping_neg()));
    Completion {
        ticket: entry.user_data(),
        result,
    }
}

/// The best ring this kernel makes: fewer interrupts first, then plain.
fn make_ring() -> io::Result<IoUring> {
    let entries = (2 * MAX_REQUESTS) as u32;
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun();
    if let Ok(ring) = builder.build(entries) {
        return Ok(ring);
    }
    let mut builder = IoUring::builder();
    if let Ok(ring) = builder.setup_coop_taskrun().build(entries) {
        return Ok(ring);
    }
    IoUring::new(entries)
}

/// Whether this process may use io_uring at all, and why not.
pub(super) fn available() -> io::Result<()> {
    let ring = IoUring::new(2)?;
    if ring.params().is_feature_ext_arg() {
        Ok(())
    } else {
        Err(io::Error::other(
            "this kernel's io_uring has no timed waits",
        ))
    }
}

impl Disk for UringDisk {
    type File = File;

    fn attach(&mut self, file: File) -> io::Result<FileSlot> {
        let free = self.files.iter().position(Option::is_none);
        let index = free.ok_or_else(|| io::Error::other("too many log files in use"))?;
        let slot = index as u32;
        if self.registered_files {
            self.ring
                .submitter()
                .register_files_update(slot, &[file.as_raw_fd()])?;
        }
        self.files[index] = Some(file);
        Ok(FileSlot(slot))
    }

    fn detach(&mut self, file: FileSlot) {
        if self.registered_files {
            // Failing leaves the file open in the ring until the next one takes its place: harmless.
            let _ = self.ring.submitter().register_files_update(file.0, &[-1]);
        }
        self.files[file.0 as usize] = None;
    }

    fn submit(&mut self, ticket: u64, request: Request) {
        let entry = match request {
            Request::Write {
                file,
                offset,
                len,
                source,
                durable,
            } => self.write_entry(file, offset, len, source, durable),
            Request::Sync { file } => self.sync_entry(file),
        };
        self.push(&entry.user_data(ticket));
        self.in_flight += 1;
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        self.collect(done);
        if done.is_empty() && (self.in_flight > 0 || !self.ring.submission().is_empty()) {
            // Also runs the work the kernel deferred to this thread.
            self.enter(0, None)?;
            self.collect(done);
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.arm_bell();
        self.enter(1, timeout)
    }
}

impl Drop for UringDisk {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut done = Vec::with_capacity(MAX_REQUESTS);
        while self.in_flight > 0 && Instant::now() < deadline {
            if self.enter(1, Some(Duration::from_millis(100))).is_err() {
                break;
            }
            self.collect(&mut done);
            done.clear();
        }
    }
}
