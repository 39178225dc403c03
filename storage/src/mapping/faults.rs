//! The SIGBUS handler and its table of our mappings.
//!
//! The handler only loads atomics and calls `mmap`, so it is safe at any moment. A fault
//! outside of our mappings goes to the handler that was there before, or kills as it always did.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Ranges are counted in units of the smallest page there is.
const UNIT_BITS: u32 = 12;
/// Bits of a packed range that hold its length.
const LEN_BITS: u32 = 28;
const CHUNK: usize = 1024;
/// More chunks than `vm.max_map_count` allows mappings on any sensible host.
const CHUNKS: usize = 1024;

#[derive(Debug)]
struct Entry {
    /// First unit and number of units; 0 when free. One word, so that it is never half new.
    range: AtomicU64,
    poisoned: AtomicBool,
}

type Chunk = [Entry; CHUNK];

static TABLE: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
/// Entries that were ever in use.
static USED: AtomicUsize = AtomicUsize::new(0);
static FREE: Mutex<Vec<&'static Entry>> = Mutex::new(Vec::new());
static PAGE_SIZE: OnceLock<usize> = OnceLock::new();

struct Previous(libc::sigaction);
static PREVIOUS: OnceLock<Previous> = OnceLock::new();
static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();

/// Bytes of a page.
pub fn page_size() -> usize {
    *PAGE_SIZE.get_or_init(|| {
        // SAFETY: asks for a constant.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size)
            .ok()
            .filter(|size| size.is_power_of_two())
            .unwrap_or(4096)
    })
}

/// Installs the handler, once in a process.
pub fn install() -> io::Result<()> {
    let installed = *INSTALLED.get_or_init(|| {
        page_size();
        // SAFETY: an all-zero sigaction is a valid one; both calls get valid pointers, and the
        // handler has the signature that SA_SIGINFO asks for.
        unsafe {
            let mut previous: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, ptr::null(), &mut previous) != 0 {
                return Err(io::Error::last_os_error().raw_os_error().unwrap_or(0));
            }
            let _ = PREVIOUS.set(Previous(previous));
            let mut ours: libc::sigaction = std::mem::zeroed();
            ours.sa_sigaction = on_fault as *const () as usize;
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut ours.sa_mask);
            if libc::sigaction(libc::SIGBUS, &ours, ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error().raw_os_error().unwrap_or(0));
            }
        }
        Ok(())
    });
    installed.map_err(io::Error::from_raw_os_error)
}

/// A mapping's place in the table; must be released before the mapping goes.
#[derive(Debug)]
pub struct Guard(&'static Entry);

impl Guard {
    /// Enters the range of a mapping.
    pub fn new(start: usize, len: usize) -> Self {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = free.pop().unwrap_or_else(fresh_entry);
        entry.poisoned.store(false, Ordering::Relaxed);
        let units = len.div_ceil(page_size()) * (page_size() >> UNIT_BITS);
        assert!(units < 1 << LEN_BITS, "a mapping of a TiB or more");
        let first = (start >> UNIT_BITS) as u64;
        assert!(first < 1 << (64 - LEN_BITS), "an address beyond 48 bits");
        entry
            .range
            .store(first << LEN_BITS | units as u64, Ordering::Release);
        Self(entry)
    }

    /// Whether a page of the mapping was replaced.
    pub fn poisoned(&self) -> bool {
        self.0.poisoned.load(Ordering::Acquire)
    }

    /// Takes the range out of the table.
    pub fn release(&self) {
        if self.0.range.swap(0, Ordering::AcqRel) != 0 {
            FREE.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(self.0);
        }
    }
}

/// Called with the free list locked.
fn fresh_entry() -> &'static Entry {
    let index = USED.load(Ordering::Relaxed);
    let chunk = index / CHUNK;
    assert!(chunk < CHUNKS, "more mappings than a process can have");
    let mut entries = TABLE[chunk].load(Ordering::Acquire);
    if entries.is_null() {
        let fresh: Box<Chunk> = Box::new(
            [const {
                Entry {
                    range: AtomicU64::new(0),
                    poisoned: AtomicBool::new(false),
                }
            }; CHUNK],
        );
        entries = Box::into_raw(fresh);
        TABLE[chunk].store(entries, Ordering::Release);
    }
    USED.store(index + 1, Ordering::Release);
    // SAFETY: a chunk in the table is never freed and is only shared from then on.
    unsafe { &(&*entries)[index % CHUNK] }
}

fn entry_of(address: usize) -> Option<&'static Entry> {
    let unit = (address >> UNIT_BITS) as u64;
    for index in 0..USED.load(Ordering::Acquire) {
        let entries = TABLE[index / CHUNK].load(Ordering::Acquire);
        if entries.is_null() {
            continue;
        }
        // SAFETY: a chunk in the table is never freed and is only shared from then on.
        let entry = unsafe { &(&*entries)[index % CHUNK] };
        let range = entry.range.load(Ordering::Acquire);
        let (first, units) = (range >> LEN_BITS, range & ((1 << LEN_BITS) - 1));
        if (first..first + units).contains(&unit) {
            return Some(entry);
        }
    }
    None
}

/// Puts a zero page in the place of the one at `address`, when that is in a mapping of ours.
fn replace_page(address: usize) -> bool {
    let Some(entry) = entry_of(address) else {
        return false;
    };
    entry.poisoned.store(true, Ordering::Release);
    let page_size = PAGE_SIZE.get().copied().unwrap_or(4096);
    let page = address & !(page_size - 1);
    // SAFETY: the page belongs to a mapping of ours that a thread is just using, so it cannot
    // be unmapped meanwhile; readers learn by the mark that its bytes are worthless.
    let replaced = unsafe {
        libc::mmap(
            page as *mut c_void,
            page_size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    replaced != libc::MAP_FAILED
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler; errno is the thread's.
    let (errno, code, address) = unsafe {
        (
            *libc::__errno_location(),
            (*info).si_code,
            (*info).si_addr() as usize,
        )
    };
    // Only a fault has a positive code; one that was sent by kill(2) has not.
    if code > 0 && replace_page(address) {
        // SAFETY: errno is the thread's own.
        unsafe { *libc::__errno_location() = errno };
        return;
    }
    // SAFETY: the arguments are those of this very signal.
    unsafe { chain(signal, info, context) };
}

/// Does what would have been done without us.
///
/// # Safety
/// Only from a SIGBUS handler, with the arguments it got.
unsafe fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(Previous(previous)) = PREVIOUS.get() else {
        return;
    };
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: restores the default action: a fault repeats and kills when the handler
            // returns, a signal that was sent is sent once more.
            unsafe {
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &default, ptr::null_mut());
                if (*info).si_code <= 0 {
                    libc::raise(signal);
                }
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: SA_SIGINFO says that the handler has this signature.
            unsafe {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
        handler => {
            // SAFETY: without SA_SIGINFO a handler has this signature.
            unsafe {
                let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}
