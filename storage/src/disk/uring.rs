//! The disk through io_uring: direct writes out of the registered tail ring into registered files.
//!
//! The tail is registered once its memory is present, which begins with the first message; until
//! then, and where the kernel refuses to pin it (LimitMEMLOCK), the same writes go unregistered.
//! The writer's bell is polled in the ring, so one wait covers completions and wake-ups.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue, types};

use super::aligned::AlignedMemory;
use super::presence::Presence;
use super::{Completion, Disk, FileSlot, MAX_FILES, MAX_REQUESTS, Request, Source, ZERO_MEMORY};
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

/// How far the buffers are on their way to being registered.
enum Pinning {
    /// It begins with the first message.
    Awaited,
    /// The first message is on its way.
    Due,
    /// The tail's memory is being made present.
    Begun(Presence),
    /// Registered, refused, or not to be.
    Over,
}

/// See the module's description.
pub struct UringDisk {
    ring: IoUring,
    tail: Arc<Tail>,
    zeros: Arc<AlignedMemory>,
    bell: Arc<Doorbell>,
    files: [Option<File>; MAX_FILES],
    registered_buffers: bool,
    pinning: Pinning,
    registered_files: bool,
    no_iowait: bool,
    bell_armed: bool,
    in_flight: usize,
}

impl UringDisk {
    /// Makes the ring; call on the thread that will use it. The warning says what works less well
    /// than it could and why.
    pub fn new(tail: Arc<Tail>, bell: Arc<Doorbell>) -> io::Result<(UringDisk, Option<String>)> {
        let mut disk = UringDisk::unregistered(tail, bell)?;
        let mut warning = None;
        if disk.ring.params().is_setup_single_issuer() {
            disk.pinning = Pinning::Awaited;
        } else {
            // Kernels before 6.0: the oldest register nothing while a request is under way.
            let refused = disk.register_buffers().err();
            warning = refused.map(|error| disk.memlock_warning(&error));
        }
        disk.register_files();
        Ok((disk, warning))
    }

    /// As [`UringDisk::new`], to be used by one thread after the other: whoever used it last waits
    /// for what is in flight. Needs Linux 5.19.
    pub fn movable(tail: Arc<Tail>, bell: Arc<Doorbell>) -> io::Result<UringDisk> {
        let mut builder = IoUring::builder();
        builder.setup_coop_taskrun().setup_taskrun_flag();
        let ring = builder.build((2 * MAX_REQUESTS) as u32)?;
        let mut disk = UringDisk::with_ring(ring, tail, bell)?;
        disk.pinning = Pinning::Awaited;
        disk.register_files();
        Ok(disk)
    }

    fn register_files(&mut self) {
        let submitter = self.ring.submitter();
        self.registered_files = submitter.register_files_sparse(MAX_FILES as u32).is_ok();
    }

    /// Readable when there is something to collect, or the bell rang.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: the ring is open as long as this value lives.
        let ring = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
        ring.try_clone_to_owned()
    }

    /// What a sleep on [`UringDisk::descriptor`] needs: the bell is heard, what is queued starts.
    pub fn before_sleep(&mut self) -> io::Result<()> {
        self.prepare_wait();
        self.start()
    }

    fn prepare_wait(&mut self) {
        self.arm_bell();
        if self.in_flight == 0 {
            self.go_on_pinning();
        }
    }

    /// As [`UringDisk::new`], with nothing registered.
    fn unregistered(tail: Arc<Tail>, bell: Arc<Doorbell>) -> io::Result<UringDisk> {
        UringDisk::with_ring(make_ring()?, tail, bell)
    }

    fn with_ring(ring: IoUring, tail: Arc<Tail>, bell: Arc<Doorbell>) -> io::Result<UringDisk> {
        if !ring.params().is_feature_ext_arg() {
            return Err(io::Error::other(
                "io_uring without timed waits (kernel < 5.11)",
            ));
        }
        let zeros = Arc::new(AlignedMemory::new(ZERO_MEMORY)?);
        Ok(UringDisk {
            no_iowait: ring.params().is_feature_no_iowait(),
            ring,
            tail,
            zeros,
            bell,
            files: [const { None }; MAX_FILES],
            registered_buffers: false,
            pinning: Pinning::Over,
            registered_files: false,
            bell_armed: false,
            in_flight: 0,
        })
    }

    fn register_buffers(&mut self) -> io::Result<()> {
        let buffers = [self.tail.memory(), &*self.zeros].map(|memory| libc::iovec {
            iov_base: memory.as_ptr().cast(),
            iov_len: memory.len(),
        });
        // SAFETY: both buffers are owned by this value (through `Arc`s) and the ring is dropped
        // first.
        unsafe { self.ring.submitter().register_buffers(&buffers) }?;
        self.registered_buffers = true;
        Ok(())
    }

    /// Takes the next step towards registered buffers, if it is time for one.
    fn go_on_pinning(&mut self) {
        match &self.pinning {
            Pinning::Due => match Presence::begin(Arc::clone(&self.tail)) {
                Ok(presence) => self.pinning = Pinning::Begun(presence),
                Err(error) => {
                    self.pinning = Pinning::Over;
                    tracing::warn!("the tail cache is not registered with io_uring: {error}");
                }
            },
            Pinning::Begun(presence) if presence.is_done() => {
                self.pinning = Pinning::Over;
                if let Err(error) = self.register_buffers() {
                    tracing::warn!("{}", self.memlock_warning(&error));
                }
            }
            Pinning::Awaited | Pinning::Begun(_) | Pinning::Over => {}
        }
    }

    fn memlock_warning(&self, error: &io::Error) -> String {
        let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK)
            .map_or_else(
                |_| "unknown".to_owned(),
                |(soft, _)| format!("{soft} bytes"),
            );
        format!(
            "cannot register the tail cache of {} bytes with io_uring ({error}): writing \
             unregistered; raise LimitMEMLOCK (now {limit})",
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
            Source::Zeros => (0, &*self.zeros, ZERO_BUFFER),
        };
        assert!(
            start <= size.len() && len <= size.len() - start,
            "a write outside its buffer"
        );
        let flags = if durable { DSYNC } else { 0 };
        // SAFETY: the start lies within the mapping (asserted above).
        let bytes = unsafe { size.as_ptr().add(start) }.cast_const();
        let len = len as u32;
        let (file, kind) = self.descriptor_of(file);
        let entry = if self.registered_buffers {
            let write = opcode::WriteFixed::new(file, bytes, len, buffer);
            write.offset(offset).rw_flags(flags).build()
        } else {
            let write = opcode::Write::new(file, bytes, len);
            write.offset(offset).rw_flags(flags).build()
        };
        entry.flags(kind)
    }

    fn sync_entry(&self, file: FileSlot) -> squeue::Entry {
        let (file, kind) = self.descriptor_of(file);
        let sync = opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC);
        sync.build().flags(kind)
    }

    /// How requests name a file: by its place among the registered ones, or its descriptor.
    fn descriptor_of(&self, slot: FileSlot) -> (types::Fd, squeue::Flags) {
        if self.registered_files {
            return (types::Fd(slot.0 as i32), squeue::Flags::FIXED_FILE);
        }
        let file = self.files[slot.0 as usize].as_ref();
        // The writer submits to attached files only.
        let descriptor = file.expect("the file is attached").as_raw_fd();
        (types::Fd(descriptor), squeue::Flags::empty())
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: buffers and files outlive the request: they are owned by this value, which waits
        // in `drop` until nothing is in flight, and gives the buffers up for good where that does
        // not come; the kernel holds files by itself. Ranges were checked when the entry was built.
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
        match entered {
            Err(error) if !is_passing(&error) => Err(error),
            _ => Ok(()),
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

/// Whether an enter may simply be repeated.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)
    )
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
    // The flag tells when there is deferred work: only then is a system call made for it.
    builder
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag();
    if let Ok(ring) = builder.build(entries) {
        return Ok(ring);
    }
    let mut builder = IoUring::builder();
    builder.setup_coop_taskrun().setup_taskrun_flag();
    if let Ok(ring) = builder.build(entries) {
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
            // Failing leaves the file open in the ring until the next one takes its place:
            // harmless.
            let _ = self.ring.submitter().register_files_update(file.0, &[-1]);
        }
        self.files[file.0 as usize] = None;
    }

    fn submit(&mut self, ticket: u64, request: Request) {
        let is_message = matches!(
            request,
            Request::Write {
                source: Source::Tail(_),
                ..
            }
        );
        if is_message && matches!(self.pinning, Pinning::Awaited) {
            self.pinning = Pinning::Due;
        }
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

    fn start(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        match self.ring.submit() {
            // What was not taken now is taken by the next enter.
            Err(error) if !is_passing(&error) => Err(error),
            _ => Ok(()),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        self.collect(done);
        if !done.is_empty() {
            self.go_on_pinning();
        }
        let submission = self.ring.submission();
        // Completions the kernel deferred to this thread are collected by an enter only.
        let work = submission.taskrun() || !submission.is_empty();
        drop(submission);
        if done.is_empty() && work {
            self.enter(0, None)?;
            self.collect(done);
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.prepare_wait();
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
        if self.in_flight > 0 {
            // The kernel may still read them, whenever that is: they are never given back.
            std::mem::forget((Arc::clone(&self.tail), Arc::clone(&self.zeros)));
            tracing::error!(requests = self.in_flight, "writes of the log did not end");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tail::tail;

    /// Writes one block of the tail and one of zeros, syncs, and reads the file back.
    fn write_and_sync(disk: &mut UringDisk, dir: &std::path::Path) {
        let path = dir.join("file");
        std::fs::write(&path, vec![9; 3 * 4096]).expect("write");
        let file = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .expect("open");
        let slot = disk.attach(file).expect("attach");
        let write = |offset, source| Request::Write {
            file: slot,
            offset,
            len: 4096,
            source,
            durable: true,
        };
        disk.submit(1, write(4096, Source::Tail(4096)));
        disk.submit(2, write(8192, Source::Zeros));
        disk.submit(3, Request::Sync { file: slot });
        disk.start().expect("start");
        let mut done = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        while done.len() < 3 && Instant::now() < deadline {
            disk.wait(Some(Duration::from_millis(100))).expect("wait");
            disk.poll(&mut done).expect("poll");
        }
        done.sort_by_key(|completion| completion.ticket);
        let results: Vec<_> = done
            .iter()
            .map(|completion| completion.result.as_ref().expect("success"))
            .collect();
        assert_eq!(results, [&4096, &4096, &0]);
        disk.detach(slot);
        let bytes = std::fs::read(&path).expect("read");
        assert!(bytes[..4096].iter().all(|&byte| byte == 9));
        assert!(bytes[4096..8192].iter().all(|&byte| byte == 7));
        assert!(bytes[8192..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn registered_and_unregistered_writes_do_the_same() {
        let dir = tempfile::tempdir_in(".").expect("directory");
        for register in [true, false] {
            let (mut writer, _) = tail(16_384, 0).expect("tail");
            assert!(writer.reserve(8192, 0));
            writer.write(4096, &[7; 4096]);
            let (shared, bell) = (
                Arc::clone(writer.shared()),
                Arc::new(Doorbell::new().expect("bell")),
            );
            let mut disk = UringDisk::unregistered(shared, bell).expect("ring");
            if register {
                disk.register_buffers().expect("register");
            }
            write_and_sync(&mut disk, dir.path());
        }
    }

    #[test]
    fn a_start_pins_no_memory_and_the_first_message_has_it_pinned() {
        let dir = tempfile::tempdir_in(".").expect("directory");
        let (mut writer, _) = tail(4 << 20, 0).expect("tail");
        assert!(writer.reserve(8192, 0));
        writer.write(4096, &[7; 4096]);
        let bell = Arc::new(Doorbell::new().expect("bell"));
        let made = UringDisk::new(Arc::clone(writer.shared()), bell).expect("ring");
        let mut disk = made.0;
        if !disk.ring.params().is_setup_single_issuer() {
            return;
        }
        assert!(matches!(disk.pinning, Pinning::Awaited) && !disk.registered_buffers);
        write_and_sync(&mut disk, dir.path());
        let deadline = Instant::now() + Duration::from_secs(20);
        while !disk.registered_buffers && Instant::now() < deadline {
            disk.wait(Some(Duration::from_millis(1))).expect("wait");
        }
        assert!(disk.registered_buffers, "never registered");
        write_and_sync(&mut disk, dir.path());
    }

    #[test]
    fn polling_alone_brings_completions() {
        let dir = tempfile::tempdir_in(".").expect("directory");
        let (writer, _) = tail(4096, 0).expect("tail");
        let bell = Arc::new(Doorbell::new().expect("bell"));
        let mut disk = UringDisk::new(Arc::clone(writer.shared()), bell)
            .expect("ring")
            .0;
        let file = File::create_new(dir.path().join("file")).expect("create");
        let slot = disk.attach(file).expect("attach");
        for ticket in 0..20 {
            let request = Request::Write {
                file: slot,
                offset: ticket * 4096,
                len: 4096,
                source: Source::Zeros,
                durable: true,
            };
            disk.submit(ticket, request);
            let mut done = Vec::new();
            let deadline = Instant::now() + Duration::from_secs(20);
            while done.is_empty() && Instant::now() < deadline {
                disk.poll(&mut done).expect("poll");
            }
            assert_eq!(done.len(), 1, "never collected");
        }
    }

    #[test]
    fn the_bell_ends_a_wait() {
        let (writer, _) = tail(4096, 0).expect("tail");
        let bell = Arc::new(Doorbell::new().expect("bell"));
        let shared = Arc::clone(writer.shared());
        let mut disk = UringDisk::unregistered(shared, Arc::clone(&bell)).expect("ring");
        for _ in 0..3 {
            bell.lie_down();
            let ringing = Arc::clone(&bell);
            let ringer = std::thread::spawn(move || ringing.ring());
            let started = Instant::now();
            disk.wait(Some(Duration::from_secs(20))).expect("wait");
            assert!(started.elapsed() < Duration::from_secs(10), "slept on");
            disk.poll(&mut Vec::new()).expect("poll");
            ringer.join().expect("ringer");
        }
    }

    #[test]
    fn a_short_or_failed_write_is_reported_as_such() {
        let dir = tempfile::tempdir_in(".").expect("directory");
        let path = dir.path().join("file");
        std::fs::write(&path, b"x").expect("write");
        let (writer, _) = tail(4096, 0).expect("tail");
        let bell = Arc::new(Doorbell::new().expect("bell"));
        let mut disk = UringDisk::unregistered(Arc::clone(writer.shared()), bell).expect("ring");
        let slot = disk
            .attach(File::open(&path).expect("open"))
            .expect("attach");
        let (offset, len) = (0, 4096);
        let write = Request::Write {
            file: slot,
            offset,
            len,
            source: Source::Zeros,
            durable: true,
        };
        disk.submit(5, write);
        let mut done = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        while done.is_empty() && Instant::now() < deadline {
            disk.wait(Some(Duration::from_millis(100))).expect("wait");
            disk.poll(&mut done).expect("poll");
        }
        assert_eq!(done[0].ticket, 5);
        let error = done[0]
            .result
            .as_ref()
            .expect_err("the file is open for reading only");
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
}
