//! What a case reaches, where the program is built to count that (`coverage.sh`); in everyday builds nothing is known.

/// The counters that were reached so far, each once for every power of two of its number.
#[derive(Default)]
pub(super) struct Coverage {
    before: Vec<u64>,
    /// By counter: a bit for each power of two by which one case has raised it.
    seen: Vec<u8>,
}

/// What one case reached.
pub(super) struct Reached {
    /// Whether no case before did.
    pub(super) is_new: bool,
    /// The counters.
    pub(super) counters: Vec<u32>,
}

impl Coverage {
    /// Plays a case. `None` where nothing is counted.
    pub(super) fn of(&mut self, case: impl FnOnce()) -> Option<Reached> {
        read_into(&mut self.before);
        case();
        let now = counters();
        if now.is_empty() {
            return None;
        }
        self.seen.resize(now.len(), 0);
        let mut reached = Reached { is_new: false, counters: Vec::new() };
        for (place, ((before, now), seen)) in self.before.iter().zip(now).zip(&mut self.seen).enumerate() {
            let times = now.wrapping_sub(*before);
            if times == 0 {
                continue;
            }
            let bit = 1 << (64 - times.leading_zeros()).div_ceil(3).min(7);
            reached.is_new |= *seen & bit == 0;
            *seen |= bit;
            reached.counters.push(place as u32);
        }
        Some(reached)
    }

    /// How many counters were reached, and how many there are.
    pub(super) fn total(&self) -> (usize, usize) {
        (self.seen.iter().filter(|seen| **seen != 0).count(), self.seen.len())
    }
}

fn read_into(before: &mut Vec<u64>) {
    before.clear();
    before.extend_from_slice(counters());
}

/// The counters of all that was built with `-C instrument-coverage`.
#[cfg(coverage)]
#[expect(unsafe_code, reason = "LLVM's counters are two addresses")]
fn counters() -> &'static [u64] {
    unsafe extern "C" {
        fn __llvm_profile_begin_counters() -> *const u64;
        fn __llvm_profile_end_counters() -> *const u64;
    }
    // SAFETY: the runtime of LLVM's profiles gives the first and the last address of one section, which lives as long as the
    // program. Counters are raised by other threads at most, which makes a number old, not wrong: the fuzzer has one thread.
    unsafe {
        let (first, last) = (__llvm_profile_begin_counters(), __llvm_profile_end_counters());
        std::slice::from_raw_parts(first, usize::try_from(last.offset_from(first)).unwrap_or(0))
    }
}

#[cfg(not(coverage))]
fn counters() -> &'static [u64] {
    &[]
}
