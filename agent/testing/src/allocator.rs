//! An allocator that counts, for tests of how much memory something takes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, with a count of the bytes that are allocated. Each test program that counts makes it its own:
/// `#[global_allocator] static ALLOCATOR: Counting = Counting::new();`.
#[derive(Debug)]
pub struct Counting {
    live: AtomicUsize,
    peak: AtomicUsize,
}

impl Counting {
    /// Nothing is allocated yet.
    pub const fn new() -> Self {
        Self { live: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    /// Bytes that all threads have allocated and not freed.
    pub fn live(&self) -> usize {
        self.live.load(Relaxed)
    }

    /// The most that was allocated at one time since [`Counting::restart_peak`], in bytes.
    pub fn peak(&self) -> usize {
        self.peak.load(Relaxed)
    }

    /// Measures the peak from now on. Returns what is allocated now, in bytes.
    pub fn restart_peak(&self) -> usize {
        let live = self.live();
        self.peak.store(live, Relaxed);
        live
    }
}

impl Default for Counting {
    fn default() -> Self {
        Self::new()
    }
}

#[expect(unsafe_code, reason = "an allocator is unsafe to implement; this one only counts")]
// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = self.live.fetch_add(layout.size(), Relaxed) + layout.size();
        self.peak.fetch_max(live, Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.live.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}
