//! Idle slots by speed: where a few tasks end soonest.
//!
//! Cells distinguish horizons a factor of 2 apart and task sizes a factor of 4: enough for work that keeps machines busy,
//! and too little for a few tasks on a grid that is mostly idle, where only the machines' speeds matter. So a summary
//! counts idle slots by speed, in steps of the eighth root of 2. For a busy grid, which has none, that is a byte.

use super::limits::CELL_MAX;

/// Speeds of one octave, rounded.
const STEPS: [f64; 8] = [
    1.0,
    1.090_507_732_665_257_7,
    1.189_207_115_002_721,
    1.296_839_554_651_009_6,
    std::f64::consts::SQRT_2,
    1.542_210_825_407_940_7,
    1.681_792_830_507_429,
    1.834_008_086_409_342_4,
];
/// The octave of class 0, as a power of 2: that of the slowest speed there may be, [`crate::queue::SPEED_MOPS_MIN`].
const FIRST_OCTAVE: i32 = -10;
/// The last octave there may be, that of [`crate::queue::SPEED_MOPS_MAX`].
const LAST_OCTAVE: i32 = 39;
/// How often an interval of times is halved at most: times closer than 2^-64 of what the slowest slot takes are not told apart.
const HALVINGS: u32 = 64;

/// Number of a class of speeds.
const CLASSES: u16 = (LAST_OCTAVE - FIRST_OCTAVE + 1) as u16 * STEPS.len() as u16;

/// The class of a speed in Mop/s: the fastest whose speed is not above it, or the first.
fn class_of(speed_mops: f64) -> u16 {
    let exponent = (speed_mops.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    let octave = exponent.clamp(FIRST_OCTAVE, LAST_OCTAVE);
    let within = speed_mops / 2_f64.powi(octave);
    let step = STEPS.partition_point(|step| *step <= within).saturating_sub(1);
    (octave - FIRST_OCTAVE) as u16 * STEPS.len() as u16 + step as u16
}

/// The slowest speed of a class, in Mop/s.
fn speed_mops(class: u16) -> f64 {
    let (octave, step) = (class / STEPS.len() as u16, class % STEPS.len() as u16);
    2_f64.powi(i32::from(octave) + FIRST_OCTAVE) * STEPS[usize::from(step)]
}

/// Idle slots by class of speed: ascending, none of 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Idle(Vec<(u16, u64)>);

/// When a number of tasks have ended on idle slots.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// The last moment at which fewer have, in seconds from now.
    before_s: f64,
    /// The first moment at which as many have.
    by_s: f64,
}

impl Idle {
    /// `slots` idle slots of one speed, in Mop/s.
    pub(super) fn of_slots(slots: u32, slot_mops: f64) -> Self {
        if slots == 0 { Self::default() } else { Self(vec![(class_of(slot_mops), slots.into())]) }
    }

    /// Number of idle slots.
    pub fn slots(&self) -> u64 {
        self.0.iter().fold(0, |sum, (_, slots)| sum.saturating_add(*slots))
    }

    pub(super) fn classes(&self) -> &[(u16, u64)] {
        &self.0
    }

    /// Adds slots of a class above the last; `false` where the numbers are not allowed.
    pub(super) fn push(&mut self, class: u16, slots: u64) -> bool {
        let follows = self.0.last().is_none_or(|(last, _)| *last < class);
        let fits = follows && class < CLASSES && (1..=CELL_MAX).contains(&slots);
        if fits {
            self.0.push((class, slots));
        }
        fits
    }

    /// Adds the idle slots of another subtree. Associative and commutative.
    pub(super) fn merge(&mut self, other: &Self) {
        for &(class, slots) in &other.0 {
            match self.0.binary_search_by_key(&class, |(class, _)| *class) {
                Ok(at) => self.0[at].1 = self.0[at].1.saturating_add(slots).min(CELL_MAX),
                Err(at) => self.0.insert(at, (class, slots)),
            }
        }
    }

    /// Removes the slots that get any of `n` tasks of `task_mops`, if these go where they end soonest.
    pub(super) fn book(&mut self, n: u64, task_mops: f64) {
        if n == 0 {
            return;
        }
        let Some(Window { before_s, by_s }) = window(&[self], n, task_mops) else {
            self.0.clear();
            return;
        };
        let mut last = n.saturating_sub(self.done(before_s, task_mops));
        for (class, slots) in self.0.iter_mut().rev() {
            let runs = |within_s| tasks_of_slot(*class, within_s, task_mops) > 0;
            if runs(before_s) {
                *slots = 0;
            } else if runs(by_s) {
                let taken = last.min(*slots);
                (*slots, last) = (*slots - taken, last - taken);
            }
        }
        self.0.retain(|(_, slots)| *slots > 0);
    }

    /// Tasks that end within this time.
    fn done(&self, within_s: f64, task_mops: f64) -> u64 {
        let of_class = |(class, slots): &(u16, u64)| tasks_of_slot(*class, within_s, task_mops).saturating_mul(*slots);
        self.0.iter().fold(0, |sum, class| sum.saturating_add(of_class(class)))
    }
}

/// Tasks that a slot of this class ends within this time, one after the other. The cast saturates.
fn tasks_of_slot(class: u16, within_s: f64, task_mops: f64) -> u64 {
    (within_s * speed_mops(class) / task_mops) as u64
}

/// When `n` tasks of `task_mops` have ended on all these slots; `None` where there are fewer slots than tasks.
fn window(all: &[&Idle], n: u64, task_mops: f64) -> Option<Window> {
    let slots = all.iter().fold(0_u64, |sum, idle| sum.saturating_add(idle.slots()));
    let slowest = all.iter().filter_map(|idle| idle.0.first()).map(|(class, _)| *class).min()?;
    let is_usable = n > 0 && n <= slots && task_mops > 0.0 && task_mops.is_finite();
    // Rounding must not leave the slowest without its task.
    let latest_s = task_mops / speed_mops(slowest) * (1.0 + f64::EPSILON * 4.0);
    if !is_usable || !latest_s.is_finite() {
        return None;
    }
    let done = |within_s| all.iter().fold(0_u64, |sum, idle| sum.saturating_add(idle.done(within_s, task_mops)));
    let mut window = Window { before_s: 0.0, by_s: latest_s };
    for _ in 0..HALVINGS {
        let middle_s = window.before_s.midpoint(window.by_s);
        if middle_s <= window.before_s || middle_s >= window.by_s {
            break;
        }
        if done(middle_s) >= n { window.by_s = middle_s } else { window.before_s = middle_s }
    }
    Some(window)
}

/// Distributes `n` tasks of `task_mops` over the idle slots of these subtrees, so that all end soonest. Returns when the
/// last ends, in seconds from now, and for each subtree its least number of tasks, and how many of the tasks that end last
/// it may have besides. `None` where there are fewer slots than tasks.
pub(crate) fn soonest(all: &[&Idle], n: u64, task_mops: f64) -> Option<(f64, Vec<(u64, u64)>)> {
    let Window { before_s, by_s } = window(all, n, task_mops)?;
    let of = |idle: &&Idle| {
        let least = idle.done(before_s, task_mops);
        (least, idle.done(by_s, task_mops).saturating_sub(least))
    };
    Some((by_s, all.iter().map(of).collect()))
}

/// Distributes `n` tasks over the idle slots of these subtrees, one on each, the fastest slots first; of equally fast ones those of the first
/// subtree. Returns the tasks of each subtree, and how many found no slot.
pub(crate) fn fastest(all: &[&Idle], n: u64) -> (Vec<u64>, u64) {
    let mut slots: Vec<(u16, usize, u64)> = Vec::new();
    for (subtree, idle) in all.iter().enumerate() {
        slots.extend(idle.0.iter().map(|&(class, slots)| (class, subtree, slots)));
    }
    slots.sort_by_key(|&(class, subtree, _)| (std::cmp::Reverse(class), subtree));
    let mut missing = n;
    let mut parts = vec![0; all.len()];
    for (_, subtree, slots) in slots {
        let taken = slots.min(missing);
        parts[subtree] += taken;
        missing -= taken;
    }
    (parts, missing)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::queue::{SPEED_MOPS_MAX, SPEED_MOPS_MIN};

    fn idle() -> impl Strategy<Value = Idle> {
        prop::collection::btree_map(100_u16..260, 1_u64..9, 0..5)
            .prop_map(|classes| Idle(classes.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn a_class_is_that_of_a_speed_up_to_a_tenth_slower(log in -9.9..39.8_f64) {
            let speed = 2_f64.powf(log);
            let slowest = speed_mops(class_of(speed));
            prop_assert!(slowest <= speed && speed < slowest * 1.0906, "{} {}", speed, slowest);
        }

        /// The oracle places one task after the other where it ends first.
        #[test]
        fn tasks_go_to_the_slots_that_end_them_soonest(
            all in prop::collection::vec(idle(), 1..4), share in 0.0..1.0_f64, task_mops in 0.1..1e6_f64,
        ) {
            let all: Vec<&Idle> = all.iter().collect();
            let slots: u64 = all.iter().map(|idle| idle.slots()).sum();
            let n = ((slots as f64 * share).ceil() as u64).clamp(1, slots.max(1));
            let Some((by_s, parts)) = soonest(&all, n, task_mops) else {
                prop_assert_eq!(slots, 0);
                return Ok(());
            };
            let mut free: Vec<(f64, f64)> = Vec::new();
            for idle in &all {
                for (class, slots) in &idle.0 {
                    free.extend((0..*slots).map(|_| (task_mops / speed_mops(*class), 0.0)));
                }
            }
            let mut last = 0.0_f64;
            for _ in 0..n {
                let next = free.iter_mut().min_by(|one, other| (one.0 + one.1).total_cmp(&(other.0 + other.1))).unwrap();
                next.1 += next.0;
                last = last.max(next.1);
            }
            prop_assert!((by_s / last - 1.0).abs() < 1e-9, "{} {}", by_s, last);
            let (least, more) = parts.iter().fold((0, 0), |(least, more), part| (least + part.0, more + part.1));
            prop_assert!(least < n && n <= least + more, "{} of {:?}", n, parts);
        }

        #[test]
        fn booked_slots_are_not_idle(mut idle in idle(), n in 0_u64..50, task_mops in 0.1..1e6_f64) {
            let before = idle.clone();
            idle.book(n, task_mops);
            prop_assert!(idle.slots() <= before.slots() && before.slots() - idle.slots() <= n);
            prop_assert!(n == 0 || idle.slots() < before.slots() || before.slots() == 0);
            prop_assert!(idle.0.iter().all(|class| class.1 > 0));
            // The fastest go first.
            let fastest = idle.0.last().map(|class| class.0);
            let left = |class: &&(u16, u64)| fastest.is_none_or(|fastest| class.0 > fastest);
            let gone: u64 = before.0.iter().filter(left).map(|class| class.1).sum();
            prop_assert!(gone <= n);
        }
    }

    #[test]
    fn tasks_that_begin_at_once_have_a_slot_each_the_fastest_first() {
        let mut mixed = Idle::of_slots(1, 4096.0);
        mixed.merge(&Idle::of_slots(2, 1024.0));
        let all = [&Idle::of_slots(3, 2048.0), &mixed];
        let split = |n| fastest(&all, n);
        assert_eq!(split(0), (vec![0, 0], 0));
        assert_eq!(split(1), (vec![0, 1], 0));
        assert_eq!(split(3), (vec![2, 1], 0));
        assert_eq!(split(6), (vec![3, 3], 0));
        assert_eq!((split(7), fastest(&[], 1)), ((vec![3, 3], 1), (Vec::new(), 1)));
    }

    #[test]
    fn small_cases_by_hand() {
        // One of 4096 Mop/s, three of 1024.
        let idle = Idle::of_slots(1, 4096.0);
        let slow = Idle::of_slots(3, 1024.0);
        let split = |n| soonest(&[&idle, &slow], n, 4096.0).map(|(by_s, parts)| ((by_s * 1e6).round() / 1e6, parts));
        assert_eq!(split(1), Some((1.0, vec![(0, 1), (0, 0)])));
        assert_eq!(split(3), Some((3.0, vec![(2, 1), (0, 0)])));
        assert_eq!(split(4), Some((4.0, vec![(3, 1), (0, 3)])));
        assert_eq!((split(5), split(0)), (None, None));
        assert_eq!(soonest(&[&Idle::default()], 1, 1.0), None);
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(soonest(&[&slow], 1, bad), None);
        }
        let booked = |n| {
            let mut both = idle.clone();
            both.merge(&slow);
            both.book(n, 4096.0);
            both
        };
        assert_eq!(booked(1), slow);
        assert_eq!(booked(3), slow);
        // One of the tasks that end last may be on a slow slot.
        assert_eq!((booked(4), booked(5)), (Idle::of_slots(2, 1024.0), Idle::default()));
        assert_eq!(class_of(SPEED_MOPS_MIN), 0);
        assert!(class_of(SPEED_MOPS_MAX) < CLASSES);
    }
}
