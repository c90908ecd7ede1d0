//! How a centralised scheduler decides: its order of bags, and its freedoms.

/// The order of the bags that have come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Order<'a> {
    /// By arrival.
    Arrival,
    /// The smallest first, by n·a, however long any has waited.
    Size,
    /// The earliest deadline first at the smallest maximum stretch by the paper's size, n·a.
    Application,
    /// The same by the effective size, a·max(n, machines up).
    Effective,
    /// The same by these sizes, one for each bag, and with no smaller stretch than some bag has had already.
    Judged(&'a [f64]),
    /// By these moments, one for each bag, in seconds.
    Due(&'a [f64]),
}

/// How a centralised scheduler decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy<'a> {
    pub(super) order: Order<'a>,
    /// Most frozen tasks of a slot; 0: a running task is never frozen.
    pub(super) frozen_max: usize,
    /// Whether, at that limit, the frozen task that is soonest over goes on instead of a much longer one that runs, so that a slot
    /// is free sooner for a bag that comes ahead of both: idlewood's rule, here beyond one machine.
    pub(super) makes_room: bool,
    /// Whether bags are ordered anew when a machine comes back and when a bag is complete, not only when a bag comes or tasks are
    /// lost.
    pub(super) replans: bool,
    /// Whether a task waits for a busy slot where it would end earlier than on an idle one.
    pub(super) waits_for_faster: bool,
}

impl<'a> Policy<'a> {
    /// First come, first served, without preemption.
    pub const FCFS: Self = Self::plain(Order::Arrival, 0);

    /// MinCent, the paper's: the smallest maximum stretch by its size at every arrival, without preemption.
    pub const MIN_CENT: Self = Self::plain(Order::Application, 0);

    const fn plain(order: Order<'a>, frozen_max: usize) -> Self {
        Self { order, frozen_max, makes_room: false, replans: false, waits_for_faster: false }
    }

    const fn refined(order: Order<'a>, frozen_max: usize) -> Self {
        Self { makes_room: true, replans: true, waits_for_faster: true, ..Self::plain(order, frozen_max) }
    }

    /// MinCent+: the effective size, and a bag that comes ahead in the order freezes running tasks, at most so many per slot, which
    /// continue later where they stopped.
    pub const fn min_cent_plus(frozen_max: usize) -> Self {
        Self::plain(Order::Effective, frozen_max)
    }

    /// Smallest bag first, frozen in the same way: a centre that knows sizes and nothing else.
    pub const fn smallest_first(frozen_max: usize) -> Self {
        Self::plain(Order::Size, frozen_max)
    }

    /// MinCent that orders anew when machines come back, too, and whose tasks wait for a faster slot where they end earlier there.
    pub const fn min_cent_replanning() -> Self {
        Self::refined(Order::Application, 0)
    }

    /// MinCent+ with these freedoms, and with idlewood's rule for slots at their limit of frozen tasks.
    pub const fn min_cent_plus_replanning(frozen_max: usize) -> Self {
        Self::refined(Order::Effective, frozen_max)
    }

    /// The same for what is judged, the largest (C − r)/size by these sizes, one for each bag.
    pub const fn judged(sizes: &'a [f64], frozen_max: usize) -> Self {
        Self::refined(Order::Judged(sizes), frozen_max)
    }

    /// With the freedoms of the last two, the bags that are due earliest first, at these moments in seconds, one for each bag.
    pub(super) const fn due(due_s: &'a [f64], frozen_max: usize) -> Self {
        Self::refined(Order::Due(due_s), frozen_max)
    }

    pub(super) fn is_preemptive(self) -> bool {
        self.frozen_max > 0
    }
}
